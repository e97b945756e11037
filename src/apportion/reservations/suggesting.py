"""What would make an ask that waits fit: nothing is suggested that was not tried on the pictures.

Each suggestion is a request that would be placed if it came in now, or limits of quotas with which
the one that waits would be. Nothing is held: others may be faster.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from itertools import islice
from typing import Any, Final

from apportion.geometry import parse_profile
from apportion.placement import PoolIndex
from apportion.pools.service import PoolRecord, QuotaKey
from apportion.quantities.windows import format_instant
from apportion.reservations.asked import Body
from apportion.reservations.plan import Seen
from apportion.reservations.windows import LAST

POOLS_TOLD: Final = 3
"""The most other pools that are suggested."""
_GPUS_READ: Final = 2_000
_RAISED_MOST: Final = 9
"""No ask is charged to more resources."""

Try = Callable[[Body, Mapping[QuotaKey, Decimal]], Seen | None]
"""Looks where a request would lie with some quotas at other limits; None where it is refused."""


@dataclass(frozen=True, slots=True)
class Idea:
    """Something that would help: another request, or limits to set."""

    code: str
    body: Body | None = None
    what: Mapping[str, Any] = field(default_factory=dict[str, Any])
    limits: Mapping[QuotaKey, Decimal] = field(default_factory=dict[QuotaKey, Decimal])


class Suggesting:
    """Tries what is near to a request that waits."""

    def __init__(
        self,
        body: Body,
        pools: Sequence[PoolIndex],
        attempt: Try,
        first_start: Callable[[Body], datetime | None],
    ) -> None:
        self._body = body
        self._pools = pools
        self._try = attempt
        self._first_start = first_start

    def ideas(self, others: Sequence[PoolRecord], short: Sequence[PoolRecord]) -> Iterator[Idea]:
        """Yield what would help, the least change first; ``short`` are pools that lack quota."""
        yield from self._later()
        yield from islice(self._elsewhere(others), POOLS_TOLD)
        yield from self._raised(short)
        yield from self._resized()
        yield from self._fewer()
        yield from self._less_host()
        yield from self._looser()

    def _fits(self, body: Body) -> Seen | None:
        seen = self._try(body, {})
        return seen if seen is not None and seen.found is not None else None

    def _later(self) -> Iterator[Idea]:
        """Wait for the first start that any of its pools has room for."""
        if self._body.get("open_ended"):
            yield from self._later_without_end()
            return
        timed = {k: v for k, v in self._body.items() if k not in ("end", "end_before")}
        seen = self._try(self._body, {})
        if seen is None:
            return
        start, end = seen.window
        body = {**self._body}
        for key in ("end", "end_before", "duration"):
            body.pop(key, None)
        slack = self._try({**timed, "end_before": format_instant(LAST)}, {})
        if slack is None or slack.found is None:
            return
        first = slack.window[0]
        body |= {"start": format_instant(first), "end": format_instant(first + (end - start))}
        if first > start and self._fits(body):
            yield Idea("later_start", body, {"start": first})

    def _later_without_end(self) -> Iterator[Idea]:
        """Begin when all that is booked ahead is over on what it wants."""
        first = self._first_start(self._body)
        if first is None:
            return
        body = {**self._body, "start": format_instant(first)}
        if self._fits(body) and not self._fits(self._body):
            yield Idea("later_start", body, {"start": first})

    def _elsewhere(self, others: Sequence[PoolRecord]) -> Iterator[Idea]:
        for pool in others:
            body = {**self._body, "pool_ids": [pool.id]}
            if self._fits(body):
                yield Idea("other_pool", body, {"pool_id": pool.id, "name": pool.name})

    def _raised(self, short: Sequence[PoolRecord]) -> Iterator[Idea]:
        """Raise what does not cover it, one after the other, till it does or there is no room."""
        for pool in short[:POOLS_TOLD]:
            body = {**self._body, "pool_ids": [pool.id]}
            limits: dict[QuotaKey, Decimal] = {}
            for _ in range(_RAISED_MOST):
                seen = self._try(body, limits)
                if seen is None or not seen.short:
                    if seen is not None and seen.found is not None:
                        yield Idea("raise_quota", None, {"pool_id": pool.id}, limits)
                    break
                lacks = seen.short[0]
                used = Decimal(0) if lacks.quota is None else lacks.quota.used
                limits[lacks.key] = used + lacks.amount

    def _resized(self) -> Iterator[Idea]:
        """Take the largest smaller MIG profile, or else the smallest larger one."""
        cut = {name for index in self._pools for name in _profiles(index)}
        for at, device in enumerate(self._body["devices"]):
            asked = [_size(name) for name in _named(device)]
            near = [(_size(name), name) for name in cut if asked and _size(name) not in asked]
            smaller = sorted((each for each in near if each[0] < min(asked)), reverse=True)
            larger = sorted(each for each in near if each[0] > max(asked))
            for code, (_, name) in [
                *(("smaller_profile", each) for each in smaller),
                *(("larger_profile", each) for each in larger),
            ]:
                body = self._with_device(at, _of_profile(device, name))
                if self._fits(body):
                    yield Idea(code, body, {"device": at, "profile": name})
                    break

    def _fewer(self) -> Iterator[Idea]:
        """Take as many members, pieces, or units of each, as there is room for."""
        gang = self._body.get("gang", {"members": 1})
        body = self._most(
            gang["members"] - 1, lambda n: {**self._body, "gang": {**gang, "members": n}}
        )
        if body is not None:
            yield Idea("fewer_members", body, {"members": body["gang"]["members"]})
        for at, device in enumerate(self._body["devices"]):
            for key, code in (("count", "fewer_pieces"), ("units", "fewer_units")):
                body = self._most(
                    device[key] - 1,
                    lambda n, at=at, d=device, k=key: self._with_device(at, {**d, k: n}),
                )
                if body is not None:
                    number = body["devices"][at][key]
                    yield Idea(code, body, {"device": at, key: number})

    def _less_host(self) -> Iterator[Idea]:
        """Take as much of the host as there is beside the GPUs, in whole CPUs and GiB."""
        host = self._body.get("resources", {})
        for key, code in (("vcpu", "fewer_vcpus"), ("memoryGiB", "less_memory")):
            most = -(-Decimal(str(host.get(key, 0)).partition("/")[0]) // 1)
            body = self._most(
                int(most) - 1,
                lambda n, k=key: {**self._body, "resources": {**host, k: str(n)}},
                least=0,
            )
            if body is not None:
                yield Idea(code, body, {key: body["resources"][key]})

    def _looser(self) -> Iterator[Idea]:
        """Leave out one condition, or else all."""
        loose: list[Mapping[str, Any]] = []
        for at, device in enumerate(self._body["devices"]):
            conditions = _conditions(device)
            loose.append(_with(device, [each for each in conditions if _is_profile(each)]))
            for each in conditions:
                body = self._with_device(
                    at, _with(device, [c for c in conditions if c is not each])
                )
                if not _is_profile(each) and self._fits(body):
                    yield Idea("loosen_selector", body, {"device": at, "without": [each]})
                    return
        body = {**self._body, "devices": loose}
        if loose != self._body["devices"] and self._fits(body):
            yield Idea("loosen_selector", body, {"without": "all"})

    def _most(self, most: int, body: Callable[[int], Body], *, least: int = 1) -> Body | None:
        """Return the request with the largest number that fits, found by halving; or None."""
        best: Body | None = None
        while least <= most:
            middle = (least + most + 1) // 2
            tried = body(middle)
            if self._fits(tried):
                best, least = tried, middle + 1
            else:
                most = middle - 1
        return best

    def _with_device(self, at: int, device: Mapping[str, Any]) -> dict[str, Any]:
        devices = list(self._body["devices"])
        devices[at] = device
        return {**self._body, "devices": devices}


def _conditions(device: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(device.get("selector", {}).get("matchExpressions", ()))


def _is_profile(condition: Mapping[str, Any]) -> bool:
    return condition["key"] == "migProfile"


def _with(device: Mapping[str, Any], conditions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {**device, "selector": {"matchExpressions": list(conditions)}}


def _named(device: Mapping[str, Any]) -> Iterator[str]:
    """Yield the profiles that a device request names."""
    for each in _conditions(device):
        if _is_profile(each) and each["op"] == "In":
            yield from each["values"]


def _size(name: str) -> tuple[int, int]:
    """Return a profile's compute slices and gigabytes."""
    profile = parse_profile(name)
    return profile.compute, profile.gigabytes


def _of_profile(device: Mapping[str, Any], name: str) -> dict[str, Any]:
    others = [each for each in _conditions(device) if not _is_profile(each)]
    return _with(device, [{"key": "migProfile", "op": "In", "values": [name]}, *others])


def _profiles(index: PoolIndex) -> set[str]:
    """Return the profiles that a pool has; of a large fleet, those of its first GPUs."""
    gpus = (gpu for node in index.nodes.values() for gpu in node.gpus)
    atoms = (atom for gpu in islice(gpus, _GPUS_READ) for atom in gpu.atoms)
    return {atom.profile for atom in atoms if atom.profile is not None}
