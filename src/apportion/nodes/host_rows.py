"""What a host has to give: its scalars, less what is kept back, overcommitted as the pool says."""

from collections.abc import Sequence
from datetime import datetime
from decimal import ROUND_FLOOR, Decimal
from typing import Final

from apportion.bookings import service as bookings
from apportion.nodes.derived import Derived, NodeRows
from apportion.nodes.schemas import Inventory
from apportion.pools.policy import HUGEPAGE_SIZES_MIB, PoolPolicy
from apportion.pools.service import PoolRecord
from apportion.store.connections import Connection
from apportion.store.sql import load

_QUERIES: Final = load("apportion.nodes")


async def write_resources(
    connection: Connection,
    pool: PoolRecord,
    derived: Sequence[Derived],
    nodes: NodeRows,
    now: datetime,
) -> None:
    node_ids = [node["id"] for node in nodes.values()]
    allocated = await bookings.host_peaks(connection, node_ids, now)
    rows: list[tuple[int, str, int, Decimal, int]] = []
    for each in derived:
        if each.document.controller == "platform":
            node = nodes[each.document.node]["id"]
            rows += _resources(node, each.document, pool.policy, allocated.get(node, (0, 0)))
    await connection.execute(
        _QUERIES["upsert_resources"],
        {
            "tenant_id": pool.tenant_id,
            "node_ids": [row[0] for row in rows],
            "resources": [row[1] for row in rows],
            "totals": [row[2] for row in rows],
            "ratios": [row[3] for row in rows],
            "capacities": [row[4] for row in rows],
            "now": now,
        },
    )
    uncontrolled = [
        nodes[each.document.node]["id"] for each in derived if each.document.controller == "tenant"
    ]
    await connection.execute(_QUERIES["drop_resources"], {"node_ids": uncontrolled})


def _resources(
    node: int, document: Inventory, policy: PoolPolicy, allocated: tuple[int, int]
) -> list[tuple[int, str, int, Decimal, int]]:
    """Compute (node, resource, total, ratio, capacity): what is left of the host, overcommitted."""
    pages = policy.pages or {
        "2Mi": document.host.hugepages.size_2mi,
        "1Gi": document.host.hugepages.size_1gi,
    }
    pages_mib = sum(count * HUGEPAGE_SIZES_MIB[size] for size, count in pages.items())
    vcpu = max(0, document.host.logical_cpus * 1000 - policy.host_reserve.vcpu)
    memory = max(0, document.host.memory_mib - pages_mib - policy.host_reserve.memory_gib)
    rows: list[tuple[int, str, int, Decimal, int]] = []
    for resource, total, used in (
        ("vcpu", vcpu, allocated[0]),
        ("memoryGiB", memory, allocated[1]),
    ):
        ratio = policy.ratios[resource]
        capacity = int((total * ratio).to_integral_value(rounding=ROUND_FLOOR))
        rows.append((node, resource, total, ratio, max(capacity, used)))
    for size in ("2Mi", "1Gi"):
        count = pages.get(size, 0)
        rows.append((node, f"hugepages{size}", count, Decimal(1), count))
    return rows
