"""What a reservation costs of a quota: counts by class, host amounts, and exact GPU equivalents."""

from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Final

from apportion.placement import Ask, DeviceAsk
from apportion.pools.policy import REPLICAS_MAX, mps_units
from apportion.pools.service import EQUIVALENTS, PoolRecord
from apportion.quantities.equivalents import to_fine

_HUNDREDTHS: Final = tuple(Fraction(units, 100) for units in range(101))
_WHOLE: Final = Fraction(1)
_INSTANCE_LEAST: Final = Fraction(1, 8)
"""No MIG instance is a smaller part of its GPU, on any board."""
_SLOT_LEAST: Final = Fraction(mps_units(REPLICAS_MAX), 100)
"""No slot is a smaller part of its GPU."""


def share_of(device: DeviceAsk) -> Fraction | None:
    """Return what part of a GPU one piece is; None for an instance or slots: their place decides.

    GPUs of one pool may have other numbers of slots while a change of it is under way.
    """
    if device.cls == "gpu":
        return _WHOLE
    if device.cls == "gpu.share":
        return _HUNDREDTHS[device.units]
    return None


def slots_share(device: DeviceAsk, pool: PoolRecord, slots: int) -> Fraction:
    """Return what part of a GPU of so many slots the slots of one piece are."""
    each = Fraction(mps_units(slots), 100) if pool.sharing == "mps" else Fraction(1, slots)
    return device.units * each


def least_equivalents(ask: Ask) -> Decimal:
    """Return the fine units that an ask takes of a pool at least: exact for shares and GPUs."""
    shares = ((share_of(device), device) for device in ask.devices)
    return Decimal(
        sum(
            to_fine(_least(device) if share is None else share) * device.count
            for share, device in shares
        )
    )


def _least(device: DeviceAsk) -> Fraction:
    return _INSTANCE_LEAST if device.cls == "gpu.mig" else device.units * _SLOT_LEAST


def equivalents(shares: Iterable[Fraction]) -> Decimal:
    """Return the fine units that pieces take, whose shares are known."""
    return Decimal(sum(map(to_fine, shares)))


def with_equivalents(amounts: dict[str, Decimal], fine: Decimal) -> dict[str, Decimal]:
    """Return amounts by resource with the equivalents; an ask of no GPU has none."""
    return {**amounts, EQUIVALENTS: fine} if fine else amounts
