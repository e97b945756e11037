"""Why a reservation waits, told in full, and what would make it fit.

What is told of nodes are counts: it is for whoever asked, who may not see them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, cast

from pydantic import ValidationError

from apportion.authority.service import Caller
from apportion.errors import ApportionError
from apportion.placement import Finding, PoolIndex
from apportion.placement.verdicts import HELP
from apportion.placement.wording import sentence
from apportion.pools.schemas import QuotaResource
from apportion.pools.service import (
    PoolRecord,
    Quota,
    QuotaKey,
    find_records,
    list_pools,
    read_quotas,
    show_amount,
    show_limit,
)
from apportion.quantities.windows import format_instant
from apportion.reservations.admission import Draft
from apportion.reservations.asked import Body, body_of, command_of
from apportion.reservations.drafting import Identity, admitted
from apportion.reservations.fleet import Fleet, instant_of, micros
from apportion.reservations.plan import Planner, Seen
from apportion.reservations.reasons import Short
from apportion.reservations.rights import Rights
from apportion.reservations.schemas import POOLS_MAX, ReservationCreate
from apportion.reservations.slack import earliest_start, held_until
from apportion.reservations.suggesting import Idea, Suggesting
from apportion.reservations.told import PoolExplained, QuotaLack, Suggestion, WhyNodes
from apportion.reservations.windows import LAST
from apportion.store.connections import Connection
from apportion.store.runtime import Runtime

_TRIED: Final = Identity("tried", b"")
"""Of a request that is looked at as if it came in now."""


@dataclass(frozen=True, slots=True)
class Sight:
    """The pools that a caller may use and its quotas, at one instant."""

    fleet: Fleet
    caller: Caller
    pools: Mapping[str, PoolRecord]
    quotas: Mapping[QuotaKey, Quota]
    now: datetime

    def look(self, draft: Draft, limits: Mapping[QuotaKey, Decimal]) -> Seen:
        """See where a draft would lie, if some quotas had other limits."""
        quotas = {key: replace(quota) for key, quota in self.quotas.items()}
        for key, most in limits.items():
            quotas[key] = Quota(most, quotas[key].used if key in quotas else Decimal(0))
        pools = {(self.caller.tenant_id, each): pool for each, pool in self.pools.items()}
        planner = Planner(self.fleet, pools, (), quotas, self.now)
        return planner.look(draft, *draft.starts(self.now))

    def attempt(self, body: Body, limits: Mapping[QuotaKey, Decimal]) -> Seen | None:
        """See where a request would lie if it came in now; None where it would be refused."""
        draft = self._admitted(body)
        return None if draft is None else self.look(draft, limits)

    def first_start(self, body: Body) -> datetime | None:
        """Return the first start from which on a request has room; None where none is known."""
        draft = self._admitted(body)
        if draft is None:
            return None
        pools = [self.pools[each] for each in draft.candidates]
        return earliest_start(self.fleet, draft, pools, (draft.starts(self.now)[0], LAST, self.now))

    def _admitted(self, body: Body) -> Draft | None:
        try:
            request = ReservationCreate.model_validate(body)
            rights = Rights(self.caller, self.pools)
            return admitted(self.caller, request, rights, _TRIED, self.now)
        except (ApportionError, ValidationError):
            return None


async def usable_pools(runtime: Runtime, caller: Caller) -> list[str]:
    """Return pools that a caller may use, by id: at most as many as one ask may name."""
    pools = await list_pools(runtime, caller, limit=POOLS_MAX)
    return [pool.id for pool in pools]


async def look_around(
    connection: Connection, fleet: Fleet, caller: Caller, pool_ids: Collection[str], now: datetime
) -> Sight:
    """Read pools and quotas, and bring the pictures up to now."""
    pools = await find_records(connection, caller, pool_ids)
    quotas = await read_quotas(connection, caller.lineage, list(pools))
    await fleet.sync(connection, list(pools), now)
    return Sight(fleet, caller, pools, quotas, now)


def explain(sight: Sight, draft: Draft | None) -> tuple[list[PoolExplained], list[Suggestion]]:
    """Say of each pool why a draft that waits is not placed there, and what would help.

    Its candidates that no longer take its work are left out: its reason names them. Of None, what
    does not wait, there is nothing to say.
    """
    if draft is None:
        return [], []
    named = [sight.pools[each] for each in draft.candidates if each in sight.pools]
    first, last = draft.starts(sight.now)
    if not named or first > last:
        return [], []
    draft = draft._replace(candidates=tuple(pool.id for pool in named))
    seen = sight.look(draft, {})
    lacking = {each.pool.id: each for each in seen.short}
    pools = [_pool(sight, draft, pool, seen, lacking.get(pool.id)) for pool in named]
    others = [pool for each, pool in sight.pools.items() if each not in draft.candidates]
    indexes = [sight.fleet.indexes[pool.id] for pool in named]
    suggesting = Suggesting(body_of(draft), indexes, sight.attempt, sight.first_start)
    short = [pool for pool in named if pool.id in lacking]
    return pools, [_told(sight, each) for each in suggesting.ideas(others, short)]


def _pool(
    sight: Sight, draft: Draft, pool: PoolRecord, seen: Seen, short: Short | None
) -> PoolExplained:
    start, end = seen.window
    index = sight.fleet.indexes[pool.id]
    times = (micros(start), micros(held_until(end, pool)), micros(sight.now))
    findings = () if short is not None else index.explain(draft.ask, *times)
    if not findings and pool.id in seen.verdicts:
        # One member of a gang alone would have room.
        findings = [Finding(each.code, each.count) for each in seen.verdicts[pool.id].reasons]
    reasons = [_why(each, index) for each in findings]
    quota = None if short is None else _lack(short.key, short.quota, short.amount)
    what = _what(draft)
    if draft.members > 1 and pool.id in seen.verdicts:
        what = f"{what} for member {seen.verdicts[pool.id].placed + 1} of {draft.members}"
    if quota is not None:
        message = f"the quota of {quota.resource} lacks {quota.missing}"
    else:
        message = sentence(len(index.nodes), reasons, what, format_instant)
    if quota is None and not reasons:
        message = "it has room now, and is about to be tried"
    return PoolExplained(
        pool_id=pool.id,
        name=pool.name,
        nodes=0 if quota is not None else len(index.nodes),
        reasons=reasons,
        quota=quota,
        what=what,
        message=message,
    )


def _why(finding: Finding, index: PoolIndex) -> WhyNodes:
    silent = index.stale_since if finding.code == "node_stale" else None
    return WhyNodes(
        code=finding.code,
        count=finding.count,
        full=finding.full,
        after_defragmentation=finding.after_defragmentation,
        until=None if finding.until is None else instant_of(finding.until),
        since=None if silent is None else instant_of(silent),
        hint=HELP[finding.code],
    )


def _what(draft: Draft) -> str:
    """Say in a few words what is looked for: of several things, the first."""
    if not draft.ask.devices:
        return "CPU and memory"
    device = draft.ask.devices[0]
    if device.cls == "gpu":
        return "GPU" if device.count == 1 else f"set of {device.count} GPUs"
    named = [e for e in device.selector.expressions if e.key == "migProfile" and e.op == "In"]
    if named:
        return f"{'|'.join(named[0].values)} placement"
    unit = {"gpu.slot": "slot", "gpu.share": "hundredth"}.get(device.cls, "instance")
    return f"{unit}" if device.units == 1 else f"{device.units} {unit}s of one GPU"


def _lack(key: QuotaKey, quota: Quota | None, amount: Decimal) -> QuotaLack:
    tenant_id, pool_id, resource = key
    most = Decimal(0) if quota is None or quota.max is None else quota.max
    used = Decimal(0) if quota is None else quota.used
    return QuotaLack(
        tenant_id=tenant_id,
        pool_id=pool_id,
        resource=cast("QuotaResource", resource),
        asked=show_amount(resource, amount),
        max=show_limit(resource, most),
        used=show_amount(resource, used),
        missing=show_amount(resource, used + amount - most),
    )


# -- what would help


def _told(sight: Sight, idea: Idea) -> Suggestion:
    limits = [_limit(sight, key, most) for key, most in idea.limits.items()]
    return Suggestion(
        code=cast("Any", idea.code),
        message=_message(sight, idea, limits),
        command=_command(sight, idea),
        request=None if idea.body is None else dict(idea.body),
        limits=limits,
        start=idea.what.get("start"),
    )


def _limit(sight: Sight, key: QuotaKey, most: Decimal) -> QuotaLack:
    quota = sight.quotas.get(key)
    used = Decimal(0) if quota is None else quota.used
    return _lack(key, quota, most - used)


def _message(sight: Sight, idea: Idea, limits: Sequence[QuotaLack]) -> str:
    what = dict(idea.what)
    if idea.code == "later_start":
        what["start"] = format_instant(what["start"])
    elif idea.code == "loosen_selector":
        what["without"] = _conditions(what["without"])
    elif idea.code == "raise_quota":
        pool = sight.pools[what["pool_id"]]
        what["who"] = "" if pool.tenant_id == sight.caller.tenant_id else "have its owner "
        what["name"], what["of"] = pool.name, limits[0].tenant_id
        what["by"] = ", ".join(f"{each.resource} by {each.missing}" for each in limits)
    return _MESSAGES[idea.code].format(**what)


_MESSAGES: Final = {
    "later_start": "begin at {start}",
    "other_pool": "ask for pool {name}, which has room now",
    "raise_quota": "{who}raise the quota of {of} on {name}: {by}",
    "smaller_profile": "ask for {profile}",
    "larger_profile": "ask for {profile}, which is more",
    "fewer_members": "ask for {members} of its members",
    "fewer_pieces": "ask for {count} of it",
    "fewer_units": "ask for {units} units a piece",
    "fewer_vcpus": "ask for {vcpu} CPUs",
    "less_memory": "ask for {memoryGiB} GiB of host memory",
    "loosen_selector": "leave out {without}",
}


def _conditions(without: Sequence[Mapping[str, Any]] | str) -> str:
    if isinstance(without, str):
        return "all conditions"
    return ", ".join(f"{each['key']} {each['op']} {' '.join(each['values'])}" for each in without)


def _command(sight: Sight, idea: Idea) -> str | None:
    if idea.body is not None:
        return command_of(idea.body)
    commands: list[str] = []
    for (tenant_id, pool_id, resource), most in idea.limits.items():
        if sight.pools[pool_id].tenant_id != sight.caller.tenant_id:
            return None
        own = "" if tenant_id == sight.caller.tenant_id else f" --of {tenant_id}"
        shown = show_limit(resource, most)
        commands.append(f"apportion quota set {pool_id} {resource} {shown}{own}")
    return " && ".join(commands)
