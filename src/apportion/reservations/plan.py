"""Deciding in memory what each draft of a batch gets: held at once, undone if it is lost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

from apportion.bookings.service import NewBooking, NewHostBooking
from apportion.errors import ApportionError, QuotaExceededError
from apportion.placement import Held, Offer, Piece, Verdict
from apportion.placement.cost import cost
from apportion.placement.state import HostHeld
from apportion.pools.policy import mps_units
from apportion.pools.service import PoolRecord, Quota, QuotaKey
from apportion.quantities.windows import format_instant
from apportion.reservations.admission import Draft
from apportion.reservations.fleet import Fleet, micros

_HUNDREDTHS: Final = tuple(Fraction(units, 100) for units in range(101))


@dataclass(frozen=True, slots=True)
class Placed:
    """A draft, the pool it got, the room there, and the window."""

    draft: Draft
    pool: PoolRecord
    offer: Offer
    start: datetime
    end: datetime
    bookings: tuple[NewBooking, ...]
    host: NewHostBooking | None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A draft that found no room, and why."""

    draft: Draft
    reason: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Refused:
    """A draft that becomes no reservation."""

    draft: Draft
    error: ApportionError


Decision = Placed | Waiting | Refused


class Planner:
    """Places drafts one after the other on the pictures, each seeing what the earlier ones took."""

    def __init__(
        self,
        fleet: Fleet,
        pools: Mapping[str, PoolRecord],
        quotas: Mapping[QuotaKey, Quota],
        now: datetime,
    ) -> None:
        self._fleet = fleet
        self._pools = pools
        self._quotas = quotas
        self._now = now

    def decide(self, draft: Draft) -> Decision:
        """Choose and hold the best offer of the candidate pools, or say why there is none."""
        start, end = draft.window(self._now)
        best: tuple[tuple[int, int], PoolRecord, Offer] | None = None
        verdicts: dict[str, Verdict] = {}
        short: list[tuple[str, str]] = []
        for pool_id in draft.candidates:
            pool = self._pools.get(pool_id)
            if pool is None:
                continue
            resource = self._not_covered(draft, pool_id)
            if resource is not None:
                short.append((pool_id, resource))
                continue
            index = self._fleet.indexes[pool_id]
            found = index.place(draft.ask, micros(start), micros(end), micros(self._now))
            if isinstance(found, Verdict):
                verdicts[pool_id] = found
                continue
            price = cost(index.nodes[found.node], draft.ask, found)
            if best is None or price < best[0]:
                best = (price, pool, found)
        if best is not None:
            return self._place(draft, best[1], best[2], (start, end))
        if not verdicts:
            return self._over_quota(draft, short)
        return Waiting(draft, self._reason(draft, verdicts, short))

    def undo(self, placed: Placed) -> None:
        """Let go in the pictures of what did not come to be."""
        index = self._fleet.indexes[placed.pool.id]
        for booking in placed.bookings:
            index.free(booking.gpu_id, booking.key)
        if placed.host is not None:
            index.free_host(placed.host.node_id, placed.draft.id)
        for resource, amount in placed.draft.charges.items():
            self._quotas[placed.draft.tenant_id, placed.pool.id, resource].used -= amount

    def _place(
        self, draft: Draft, pool: PoolRecord, offer: Offer, window: tuple[datetime, datetime]
    ) -> Placed:
        start, end = window
        pieces = tuple(
            NewBooking(
                tenant_id=draft.tenant_id,
                pool_id=pool.id,
                gpu_id=piece.gpu,
                reservation_id=draft.id,
                piece=number,
                device=piece.device,
                cls=draft.ask.devices[piece.device].cls,
                atom_id=piece.atom,
                generation=piece.generation,
                units=piece.units,
                start=start,
                end=end,
                share=self._share(draft, pool, piece),
            )
            for number, piece in enumerate(offer.pieces)
        )
        host = None
        if draft.ask.vcpu_milli or draft.ask.memory_mib:
            host = NewHostBooking(
                tenant_id=draft.tenant_id,
                node_id=offer.node,
                reservation_id=draft.id,
                vcpu_milli=draft.ask.vcpu_milli,
                memory_mib=draft.ask.memory_mib,
                start=start,
                end=end,
            )
        placed = Placed(draft, pool, offer, start, end, pieces, host)
        self._hold(placed)
        return placed

    def _hold(self, placed: Placed) -> None:
        index = self._fleet.indexes[placed.pool.id]
        start, end = micros(placed.start), micros(placed.end)
        for booking in placed.bookings:
            index.book(booking.gpu_id, booking.key, Held(start, end, booking.units))
        ask = placed.draft.ask
        if placed.host is not None:
            held = HostHeld(start, end, ask.vcpu_milli, ask.memory_mib)
            index.book_host(placed.host.node_id, placed.draft.id, held)
        for resource, amount in placed.draft.charges.items():
            self._quotas[placed.draft.tenant_id, placed.pool.id, resource].used += amount

    def _share(self, draft: Draft, pool: PoolRecord, piece: Piece) -> Fraction:
        device = draft.ask.devices[piece.device]
        if device.cls == "gpu.share":
            return _HUNDREDTHS[device.units]
        if device.cls == "gpu.slot":
            slots = pool.policy.replicas or 1
            each = Fraction(mps_units(slots), 100) if pool.sharing == "mps" else Fraction(1, slots)
            return device.units * each
        return Fraction(1) if piece.atom is None else self._fleet.share_of(pool.id, piece.atom)

    def _not_covered(self, draft: Draft, pool_id: str) -> str | None:
        for resource, amount in draft.charges.items():
            quota = self._quotas.get((draft.tenant_id, pool_id, resource))
            if quota is None or not quota.covers(amount):
                return resource
        return None

    def _over_quota(self, draft: Draft, short: Sequence[tuple[str, str]]) -> Decision:
        if not short:
            error = QuotaExceededError("none of the pools is there any more")
            return Refused(draft, error)
        pool_id, resource = short[0]
        quota = self._quotas.get((draft.tenant_id, pool_id, resource))
        amount = draft.charges[resource]
        limit = "no quota row, which grants 0" if quota is None else f"{_left(quota)} left"
        message = f"asks for {_number(amount)} {resource} of {pool_id}, and there is {limit}"
        if draft.waiting:
            reason = {"code": "quota_exceeded", "message": message, "quota": _short(short)}
            return Waiting(draft, {**reason, "since": self._since(draft)})
        error = QuotaExceededError(
            message,
            hint=f"Set one: `apportion quota set {pool_id} {resource} LIMIT`",
            details={
                "pool_id": pool_id,
                "resource": resource,
                "asked": _number(amount),
                "max": None if quota is None or quota.max is None else _number(quota.max),
                "used": "0" if quota is None else _number(quota.used),
            },
        )
        return Refused(draft, error)

    def _since(self, draft: Draft) -> object:
        return draft.reason.get("since") if draft.waiting else format_instant(self._now)

    def _reason(
        self, draft: Draft, verdicts: Mapping[str, Verdict], short: Sequence[tuple[str, str]]
    ) -> dict[str, Any]:
        counts: dict[str, int] = {}
        for verdict in verdicts.values():
            for reason in verdict.reasons:
                counts[reason.code] = counts.get(reason.code, 0) + reason.count
        nodes = sum(verdict.nodes for verdict in verdicts.values())
        first = max(verdicts.values(), key=lambda verdict: verdict.nodes)
        return {
            "code": first.code,
            "message": "; ".join(
                [
                    *(f"{self._pools[each].name}: {v.message}" for each, v in verdicts.items()),
                    *(f"{self._pools[each].name}: too little quota of {of}" for each, of in short),
                ]
            ),
            "hint": first.hint,
            "since": self._since(draft),
            "nodes": nodes,
            "reasons": [{"code": code, "count": count} for code, count in counts.items()],
            **({"quota": _short(short)} if short else {}),
        }


def _short(short: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"pool_id": pool_id, "resource": resource} for pool_id, resource in short]


def _left(quota: Quota) -> str:
    return "unlimited" if quota.max is None else _number(max(Decimal(0), quota.max - quota.used))


def _number(value: Decimal) -> str:
    return f"{value.normalize():f}"
