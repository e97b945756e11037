"""What a report leaves behind, and the short way of one that says what the last one said."""

import hashlib
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from apportion.authority.service import Caller
from apportion.events.service import Event, append
from apportion.nodes.host_units import differing
from apportion.nodes.schemas import NodeReport
from apportion.pools.service import PoolRecord
from apportion.quantities.windows import format_instant
from apportion.store.connections import Connection
from apportion.store.runtime import Runtime
from apportion.store.sql import load

_QUERIES: Final = load("apportion.nodes")

LOOKED_AT_EVERY: Final = timedelta(minutes=10)
"""How long a report that says the same is believed to mean the same: bookings come and go."""

_NUMBERS: Final = {"sequence", "observed_generation"}


def digest_of(report: NodeReport) -> bytes:
    """Return what tells whether two reports say the same, but for their numbers."""
    return hashlib.sha256(report.model_dump_json(exclude=_NUMBERS).encode()).digest()


async def same_again(
    runtime: Runtime, connection: Connection, caller: Caller, report: NodeReport
) -> int | None:
    """Note that a node says what it said last; None where it does not, and it is to be taken in.

    Returns the generation of its spec. It holds nothing but the node's row, for one statement: most
    reports of a fleet are such.
    """
    now = runtime.now()
    cursor = await connection.execute(
        _QUERIES["same_again"],
        {
            "uid": caller.node_id,
            "key": caller.node_key,
            "sequence": report.sequence,
            "observed": report.observed_generation,
            "digest": digest_of(report),
            "fresh": now - LOOKED_AT_EVERY,
            "now": now,
        },
    )
    row = await cursor.fetchone()
    return None if row is None else int(row["spec_generation"])


async def tell(
    runtime: Runtime,
    connection: Connection,
    caller: Caller,
    *,
    pool: PoolRecord,
    node: Mapping[str, Any],
    report: NodeReport,
    passed: bool,
) -> None:
    """Tell what a report that was taken in changed; ``node`` is the node as it was before."""
    facts: dict[str, object] = {"pool_id": pool.id, "name": node["name"]}
    told: list[Event] = []
    last = node["report_sequence"]
    if node["public_key"] is not None and last is not None and report.sequence > last + 1:
        gap = {"first": last + 1, "last": report.sequence - 1}
        told.append(Event("node.reports_missed", pool.tenant_id, node["uid"], facts | gap))
    if node["stale_since"] is not None:
        told.append(returned(pool, node["uid"], node["name"], node["stale_since"]))
    results = {name: each.model_dump() for name, each in report.acceptance.items()}
    if pool.policy.acceptance and node["accepted_at"] is None:
        checks: dict[str, object] = {"checks": results}
        if passed:
            told.append(
                Event("node.accepted", pool.tenant_id, node["uid"], facts | checks, after=checks)
            )
        elif results != node["acceptance"] and results:
            told.append(Event("node.not_accepted", pool.tenant_id, node["uid"], facts | checks))
    told += _of_host(facts, pool, node, report)
    await append(connection, caller, runtime.now(), told)


def returned(pool: PoolRecord, node_id: str, name: str, since: datetime) -> Event:
    """Tell that a node is heard of again, of which nobody heard since then."""
    before = {"stale_since": format_instant(since)}
    return Event(
        "node.returned",
        pool.tenant_id,
        node_id,
        {"pool_id": pool.id, "name": name, **before},
        before=before,
        after={"stale_since": None},
    )


def _of_host(
    facts: Mapping[str, object], pool: PoolRecord, node: Mapping[str, Any], report: NodeReport
) -> Iterator[Event]:
    """Tell where a host begins to differ from what its pool asks, differs otherwise, or no more."""
    outcomes = {name: each.model_dump() for name, each in report.outcomes.items()}
    before, after = differing(node["outcomes"]), differing(outcomes)
    if after and before != after:
        data = {**facts, "units": after}
        yield Event("node.host_differs", pool.tenant_id, node["uid"], data)
    if before and not after:
        yield Event("node.host_agrees", pool.tenant_id, node["uid"], facts)
