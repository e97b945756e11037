"""Why a draft gets nothing, in words and as data: what it waits for, or why it fails."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from apportion.errors import ApportionError, QuotaExceededError
from apportion.placement import Verdict
from apportion.placement.verdicts import verdict
from apportion.pools.service import (
    EQUIVALENTS,
    PoolRecord,
    PoolUse,
    Quota,
    QuotaKey,
    show_amount,
    show_limit,
)
from apportion.quantities.windows import format_instant
from apportion.reservations import topics
from apportion.reservations.admission import Draft
from apportion.reservations.fleet import Fleet, instant_of


@dataclass(frozen=True, slots=True)
class Waiting:
    """A draft that found no room, why, and what could help it (see `topics`)."""

    draft: Draft
    at: datetime
    reason: Mapping[str, Any]
    waits_for: tuple[str, ...] = ()
    reserve_at: datetime | None = None

    @property
    def is_news(self) -> bool:
        """Whether it waits for something else than before: counts alone change all the time.

        That there is no start to reserve for it changes nothing about why it waits.
        """
        if self.draft.reserving:
            return False
        return not self.draft.waiting or codes(self.reason) != codes(self.draft.reason)


@dataclass(frozen=True, slots=True)
class Gone:
    """A draft that has waited for pools none of which takes its work any more."""

    draft: Draft
    at: datetime
    reason: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Refused:
    """A draft that becomes no reservation."""

    draft: Draft
    error: ApportionError


@dataclass(frozen=True, slots=True)
class Short:
    """A quota that does not cover what a draft asks of a pool."""

    pool: PoolRecord
    resource: str
    amount: Decimal
    quota: Quota | None
    at_least: bool

    @property
    def key(self) -> QuotaKey:
        """Whose quota of what it is."""
        return self.pool.quota_tenant_id, self.pool.id, self.resource

    @property
    def by_place(self) -> bool:
        """Whether the amount is that of the place that was found."""
        return self.resource == EQUIVALENTS and not self.at_least


class Reasons:
    """Words for what the pools that drafts name do not give them at one instant."""

    def __init__(
        self,
        fleet: Fleet,
        pools: Mapping[PoolUse, PoolRecord],
        archived: Collection[str],
        now: datetime,
    ) -> None:
        self._fleet = fleet
        self._pools = pools
        self._archived = archived
        self._now = now

    def gone(self, draft: Draft) -> Waiting | Gone | Refused:
        """Fail what waits for pools that no longer take it; what comes in now waits with that.

        The next try fails it: its tenant is told in one way, whenever the pool went.
        """
        archived = any(each in self._archived for each in draft.candidates)
        message = "; ".join(self._why_gone(draft, draft.candidates))
        if draft.waiting:
            reason = {"code": "PoolGone", "message": message, "pools": list(draft.candidates)}
            return Gone(draft, self._now, {**reason, "last": draft.reason})
        reason = {"code": "pool_archived"} if archived else {"code": "pool_withdrawn"}
        return Waiting(
            draft,
            self._now,
            {
                **reason,
                "message": message,
                "hint": "it fails with PoolGone at its next try; ask for another pool",
                **self._story(draft),
                "gone": list(draft.candidates),
            },
        )

    def too_late(self, draft: Draft) -> Waiting | Gone | Refused:
        """Let the clock fail what could be placed, but would not be over in time any more."""
        message = "it can no longer be over in time"
        reason = {"code": "too_late", "message": message, **self._story(draft)}
        return Waiting(draft, self._now, reason)

    def _why_gone(self, draft: Draft, pool_ids: Sequence[str]) -> list[str]:
        """Say of each of these candidates why it takes no work of the tenant."""
        named = "the pool" if len(draft.candidates) == 1 else "{}"
        return [
            f"{named.format(each)} is "
            + ("archived" if each in self._archived else "no longer offered to this tenant")
            for each in pool_ids
        ]

    def over_quota(self, draft: Draft, short: Sequence[Short]) -> Waiting | Gone | Refused:
        first = short[0]
        pool, resource = first.pool, first.resource
        asked = ("at least " if first.at_least else "") + str(show_amount(resource, first.amount))
        message = f"asks for {asked} {resource} of {pool.name}, and there is {_left(first)}"
        if draft.waiting:
            gone = self._gone_among(draft)
            reason = {
                "code": "quota_exceeded",
                "message": "; ".join([message, *self._why_gone(draft, gone)]),
                "quota": _shorts(short),
                **self._story(draft),
                **({"gone": gone} if gone else {}),
            }
            return self._waiting(draft, reason, {}, short)
        limit = None if first.quota is None else first.quota.max
        used = Decimal(0) if first.quota is None else first.quota.used
        error = QuotaExceededError(
            message,
            hint=_who_raises(draft, pool, resource),
            details={
                "pool_id": pool.id,
                "tenant_id": pool.quota_tenant_id,
                "resource": resource,
                "asked": asked,
                "max": None if limit is None else str(show_amount(resource, limit)),
                "used": str(show_amount(resource, used)),
            },
        )
        return Refused(draft, error)

    def _usable(self, draft: Draft) -> list[PoolRecord]:
        found = (self._pools.get((draft.tenant_id, each)) for each in draft.candidates)
        return [pool for pool in found if pool is not None]

    def _gone_among(self, draft: Draft) -> list[str]:
        tenant = draft.tenant_id
        return [each for each in draft.candidates if (tenant, each) not in self._pools]

    def _story(self, draft: Draft) -> dict[str, object]:
        """Say since when it waits, and how often it has waited for something else by now."""
        if not draft.waiting:
            return {"since": format_instant(self._now), "changes": 0}
        before = draft.reason
        return {"since": before.get("since"), "changes": before.get("changes", 0) + 1}

    def _waiting(
        self,
        draft: Draft,
        reason: Mapping[str, Any],
        verdicts: Mapping[str, Verdict],
        short: Sequence[Short],
    ) -> Waiting:
        """Let a draft wait where the offers have it stand that are held now."""
        usable = self._usable(draft)
        priority = max(pool.priority for pool in usable)
        standing = draft._replace(priority=priority)
        waits_for = {topics.helping(pool_id, each) for pool_id, each in verdicts.items()}
        waits_for |= {topics.quota(each.key) for each in short}
        # Where it would lie decided what it costs: another place may cost less.
        waits_for |= {topics.room(each.pool.id) for each in short if each.by_place}
        return Waiting(
            standing, self._now, reason, tuple(sorted(waits_for)), self._reserve_at(draft, usable)
        )

    def _reserve_at(self, draft: Draft, pools: Sequence[PoolRecord]) -> datetime | None:
        """Return when it will have waited long enough for a reserved start; None for never.

        What says when it is to begin is never given another start.
        """
        after = [pool.policy.reserve_after for pool in pools if pool.policy.reserve_after]
        fixed = draft.duration is None or draft.asked_start or draft.end_before
        return None if fixed or not after else self._now + min(after)

    def no_room(
        self, draft: Draft, verdicts: Mapping[str, Verdict], short: Sequence[Short]
    ) -> Waiting:
        """Let a draft wait for room, or for whatever else its pools lack."""
        names = {pool.id: pool.name for pool in self._usable(draft)}
        counts: Counter[str] = Counter()
        for each in verdicts.values():
            counts.update({reason.code: reason.count for reason in each.reasons})
        merged = verdict(sum(each.nodes for each in verdicts.values()), counts)
        gone = self._gone_among(draft)
        reason = {
            "code": merged.code,
            "message": "; ".join(
                [
                    *(f"{names[each]}: {_said(draft, v)}" for each, v in verdicts.items()),
                    *(f"{each.pool.name}: too little quota of {each.resource}" for each in short),
                    *self._why_gone(draft, gone),
                ]
            ),
            "hint": merged.hint,
            **self._story(draft),
            "nodes": merged.nodes,
            "reasons": [
                {"code": each.code, "count": each.count, **self._since(each.code, verdicts)}
                for each in merged.reasons
            ],
            **({"members": _room_for(draft, verdicts)} if draft.members > 1 else {}),
            **({"quota": _shorts(short)} if short else {}),
            **({"gone": gone} if gone else {}),
        }
        return self._waiting(draft, reason, verdicts, short)

    def _since(self, code: str, pool_ids: Iterable[str]) -> dict[str, str]:
        """Say since when the first of the nodes is not heard of, where that is the reason."""
        if code != "node_stale":
            return {}
        silent = [self._fleet.indexes[each].stale_since for each in pool_ids]
        since = min(each for each in silent if each is not None)
        return {"since": format_instant(instant_of(since))}


def codes(reason: Mapping[str, Any]) -> list[str]:
    """Return what a reason says but for its counts, which change with every booking of others."""
    each_code = [each["code"] for each in reason.get("reasons", ())]
    short = [f"{each['pool_id']} {each['resource']}" for each in reason.get("quota", ())]
    return [reason["code"], *each_code, *short, *reason.get("gone", ())]


def _said(draft: Draft, verdict: Verdict) -> str:
    """Write a verdict; of a gang it is about the member that has no room beside the others."""
    if draft.members == 1:
        return verdict.message
    return f"room for {verdict.placed} of {draft.members} members; the next: {verdict.message}"


def _room_for(draft: Draft, verdicts: Mapping[str, Verdict]) -> dict[str, int]:
    placed = max(verdict.placed for verdict in verdicts.values())
    return {"asked": draft.members, "placed": placed}


def _shorts(short: Sequence[Short]) -> list[dict[str, str]]:
    return [{"pool_id": each.pool.id, "resource": each.resource} for each in short]


def _left(short: Short) -> str:
    if short.quota is None:
        return "no quota row, which grants 0"
    return f"{show_limit(short.resource, short.quota.left)} left"


def _who_raises(draft: Draft, pool: PoolRecord, resource: str) -> str:
    if pool.tenant_id == draft.tenant_id:
        return f"Set one: `apportion quota set {pool.name} {resource} LIMIT`"
    return f"The pool's owner sets the quota of {pool.quota_tenant_id} on it"
