"""Admission: from a request to an ask, or a clear refusal. Pure but for what it is given."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple

from pydantic_core import to_json

from apportion.authority.service import Caller
from apportion.errors import InvalidInputError
from apportion.geometry import parse_profile
from apportion.placement import Ask, DeviceAsk, Offer, PolicyName, Selector
from apportion.placement.selectors import Expression, check_expression
from apportion.pools.policy import PlacementPolicy
from apportion.pools.service import PoolRecord
from apportion.quantities.sizes import parse_memory_gib, parse_milli_cpu
from apportion.reservations.arrangement import check_arrangement, check_fits_gpu, check_movable
from apportion.reservations.schemas import (
    DeviceRequest,
    MatchExpression,
    Quantity,
    ReservationAsk,
    ReservationCreate,
)
from apportion.reservations.window_schemas import SeriesCreate
from apportion.reservations.windows import LAST

_INSTANT: Final = timedelta(microseconds=1)
_NOTHING: Final[Mapping[str, Any]] = {}
_ITS_OWN: Final = {"idempotency_key", "name"}
"""What of a request says nothing of what is asked for."""


class Draft(NamedTuple):
    """An admitted request on its way to a place.

    The window is [asked_start, asked_end), or ``duration`` from the moment that it is placed, or
    ``open_ended``; with ``end_before`` it may begin whenever it is over by then. Each of the
    ``members`` of a gang gets what the ask says. ``offer`` is where a plan of its batch has it.
    ``waiting`` marks one that is stored already, pending, and tried again. ``caller`` asked for it,
    for good; it is placed ``by`` whoever asks or tries again now, for the tenant that it is for.
    ``reserving`` looks for a start till its pools' patience ends, though it asked to begin at once;
    where one is reserved by then, for one that is ``sooner_than`` it, and if it was put off no
    sooner than ``asked_start``.
    """

    id: str
    by: Caller
    caller: str
    name: str | None
    candidates: tuple[str, ...]
    ask: Ask
    devices: Sequence[Mapping[str, Any]]
    asked_start: datetime | None
    asked_end: datetime | None
    duration: timedelta | None
    pending_until: datetime
    request_hash: bytes
    created_at: datetime
    placement: Mapping[str, Any] = _NOTHING
    members: int = 1
    end_before: datetime | None = None
    open_ended: bool = False
    series_id: str | None = None
    priority: int = 0
    offer: Offer | None = None
    waiting: bool = False
    reserving: bool = False
    sooner_than: datetime | None = None
    reason: Mapping[str, Any] = _NOTHING

    @property
    def tenant_id(self) -> str:
        """Whose reservation it is."""
        return self.by.tenant_id

    def starts(self, now: datetime) -> tuple[datetime, datetime]:
        """Return when it may begin: the first instant and the last, which may be past."""
        if self.sooner_than is not None:
            first, last = max(now, self.asked_start or now), self.sooner_than - _INSTANT
            # What has its end gets shorter by waiting: it is looked for at once, with each change.
            return first, last if self.asked_end is None else min(first, last)
        if self.reserving:
            return now, self.pending_until
        if self.end_before is None:
            start = self.asked_start or now
            return start, start
        return max(self.asked_start or now, now), self.end_before - (self.duration or timedelta())

    def window(self, start: datetime) -> tuple[datetime, datetime]:
        """Return the window that it would have if it began then; what has no end ends `LAST`."""
        if self.open_ended:
            return start, LAST
        if self.asked_end is not None:
            return start, self.asked_end
        return start, start + (self.duration or timedelta())

    @property
    def policy(self) -> PlacementPolicy | None:
        """How a place is chosen among several; None where the pool says it."""
        return self.placement.get("policy")

    def policy_in(self, pool: PoolRecord) -> PolicyName:
        """Return how one place is chosen; what only plans batches leaves that to the default."""
        policy = self.policy or pool.policy.placement
        return "fragmentation" if policy == "exact" else policy

    @property
    def members_apart(self) -> bool:
        """Whether each member of a gang is to have a node of its own."""
        return self.placement.get("members_apart", False)

    def amounts(self) -> dict[str, Decimal]:
        """Return what it takes of the quota wherever it lies, by resource: counts and host.

        Of a gang that is what all of its members take.
        """
        amounts: dict[str, Decimal] = {}
        for device in self.ask.devices:
            amount = amounts.get(device.cls, Decimal(0))
            amounts[device.cls] = amount + device.count * device.units
        if self.ask.vcpu_milli:
            amounts["vcpu"] = Decimal(self.ask.vcpu_milli) / 1000
        if self.ask.memory_mib:
            amounts["memoryGiB"] = Decimal(self.ask.memory_mib) / 1024
        return {resource: self.members * amount for resource, amount in amounts.items()}


def candidates(request: ReservationAsk) -> list[str]:
    """Return the pools that the request names."""
    if (request.pool_id is None) == (request.pool_ids is None):
        raise InvalidInputError("give either pool_id or pool_ids", field="pool_id")
    named = [request.pool_id] if request.pool_id is not None else (request.pool_ids or [])
    if not named:
        raise InvalidInputError("needs at least one pool", field="pool_ids", given=[])
    if len(set(named)) != len(named):
        raise InvalidInputError("names a pool twice", field="pool_ids", given=named)
    return named


def asked_texts(requests: Sequence[ReservationCreate | SeriesCreate]) -> list[str]:
    """Return of each request what it shares exactly with those that ask for the same by any name.

    What is left at its default does not count: a later version may have more to leave out. To leave
    it out takes long, so that is done once for all that say the same in the same words.
    """
    texts: dict[str, str] = {}
    found: list[str] = []
    for request in requests:
        said = request.model_dump_json(exclude=_ITS_OWN, exclude_unset=True)
        if said not in texts:
            texts[said] = request.model_dump_json(
                by_alias=True, exclude=_ITS_OWN, exclude_defaults=True
            )
        found.append(texts[said])
    return found


def request_hash(name: str | None, text: str) -> bytes:
    """Return what two requests share exactly when they ask for the same by the same name."""
    return hashlib.sha256(to_json([name]) + text.encode()).digest()


def admit(request: ReservationAsk, pools: Sequence[PoolRecord]) -> Ask:
    """Check every device against every candidate pool's mode, and read the amounts.

    Raises InvalidInputError; the message of a device begins with its index: ``devices[0]: …``.
    """
    ask = Ask(
        devices=tuple(_device(device, at) for at, device in enumerate(request.devices)),
        vcpu_milli=_amount(request.resources.vcpu, parse_milli_cpu, "resources.vcpu"),
        memory_mib=_amount(request.resources.memory_gib, parse_memory_gib, "resources.memoryGiB"),
        together=request.placement.together,
        apart=request.placement.apart,
    )
    if not ask.devices and not ask.vcpu_milli and not ask.memory_mib:
        raise InvalidInputError(
            "ask for devices, or for host resources, or for both", field="devices", given=[]
        )
    check_arrangement(ask)
    for pool in pools:
        for at, device in enumerate(request.devices):
            _check_mode(device, at, pool)
        check_fits_gpu(ask, pool)
        check_movable(pool, movable=request.placement.movable)
    return ask


def attributes_of(ask: Ask, length: timedelta, *, members: int) -> dict[str, int]:
    """Return what access policies see of an ask: whole GPUs, pieces of GPUs, and for how long.

    All members of a gang count. A piece of ``gpu.share`` counts as one, as a slot does; a begun
    second as a whole one.
    """
    counts = {"gpuCount": 0, "gpuSlices": 0}
    for device in ask.devices:
        pieces = members * device.count * (device.units if device.cls == "gpu.slot" else 1)
        counts["gpuCount" if device.cls == "gpu" else "gpuSlices"] += pieces
    return {**counts, "durationSeconds": -(-length // timedelta(seconds=1))}


def _amount(value: Quantity, read: Callable[..., int], field_name: str) -> int:
    return read(value, field=field_name) if value != 0 else 0


def _device(device: DeviceRequest, at: int) -> DeviceAsk:
    if device.class_ in ("gpu", "gpu.mig") and device.units != 1:
        raise InvalidInputError(
            f"a piece of {device.class_} is one whole; ask for more with count",
            field=f"devices[{at}].units",
            given=device.units,
            allowed="1",
        )
    expressions = tuple(
        _expression(each, f"devices[{at}].selector.matchExpressions[{i}]")
        for i, each in enumerate(device.selector.match_expressions)
    )
    return DeviceAsk(device.class_, device.count, device.units, Selector(expressions))


def _expression(each: MatchExpression, field_name: str) -> Expression:
    values = tuple(str(value) for value in each.values)
    if each.key == "slot":
        raise InvalidInputError(
            "slots are interchangeable: which one it is becomes final only when the window begins",
            field=f"{field_name}.key",
            given=each.key,
        )
    if each.key == "migProfile":
        values = tuple(str(parse_profile(value, field=f"{field_name}.values")) for value in values)
    return check_expression(each.key, each.op, values, field=field_name)


def _check_mode(device: DeviceRequest, at: int, pool: PoolRecord) -> None:
    field_name = f"devices[{at}]"
    if device.class_ == "gpu.mig" and pool.sharing != "mig":
        raise InvalidInputError("gpu.mig atoms exist only in mig pools", field=field_name)
    if device.class_ == "gpu.slot" and pool.sharing not in ("timeslice", "mps"):
        raise InvalidInputError(
            "gpu.slot atoms exist only in timeslice or mps pools", field=field_name
        )
    if device.class_ == "gpu.slot" and pool.policy.replicas is None:
        raise InvalidInputError(
            "the pool has free shares, not slots; ask for gpu.share", field=field_name
        )
    if device.class_ == "gpu.share" and pool.policy.shares is None:
        raise InvalidInputError(
            "gpu.share atoms exist only in pools whose policy sets shares", field=field_name
        )
    if device.sharing not in (None, "exclusive", pool.sharing):
        raise InvalidInputError(
            f"the pool shares GPUs as {pool.sharing}, not {device.sharing}", field=field_name
        )
    if device.class_ == "gpu.slot" and device.units > (pool.policy.replicas or 0):
        raise InvalidInputError(
            f"a GPU of the pool has {pool.policy.replicas} slots",
            field=f"{field_name}.units",
            given=device.units,
        )
