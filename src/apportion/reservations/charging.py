"""What a reservation costs of a quota: counts by class, host amounts, and exact GPU equivalents."""

from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Final

from apportion.placement import Ask, DeviceAsk
from apportion.pools.policy import mps_units
from apportion.pools.service import EQUIVALENTS, PoolRecord
from apportion.quantities.equivalents import to_fine

_HUNDREDTHS: Final = tuple(Fraction(units, 100) for units in range(101))
_WHOLE: Final = Fraction(1)
_INSTANCE_LEAST: Final = Fraction(1, 8)
"""No MIG instance is a smaller part of its GPU, on any board."""


def share_of(device: DeviceAsk, pool: PoolRecord) -> Fraction | None:
    """Return what part of a GPU one piece is; None for an instance, which its place decides."""
    if device.cls == "gpu":
        return _WHOLE
    if device.cls == "gpu.share":
        return _HUNDREDTHS[device.units]
    if device.cls == "gpu.slot":
        slots = pool.policy.replicas or 1
        each = Fraction(mps_units(slots), 100) if pool.sharing == "mps" else Fraction(1, slots)
        return device.units * each
    return None


def least_equivalents(ask: Ask, pool: PoolRecord) -> Decimal:
    """Return the fine units that an ask takes of a pool at least: exact without instances."""
    shares = ((share_of(device, pool), device.count) for device in ask.devices)
    return Decimal(
        sum(to_fine(_INSTANCE_LEAST if share is None else share) * count for share, count in shares)
    )


def equivalents(shares: Iterable[Fraction]) -> Decimal:
    """Return the fine units that pieces take, whose shares are known."""
    return Decimal(sum(map(to_fine, shares)))


def with_equivalents(amounts: dict[str, Decimal], fine: Decimal) -> dict[str, Decimal]:
    """Return amounts by resource with the equivalents; an ask of no GPU has none."""
    return {**amounts, EQUIVALENTS: fine} if fine else amounts
