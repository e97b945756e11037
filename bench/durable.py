"""Complete reservations a second through the service, durable, beside bare multi-row INSERTs.

Both on the same freshly made server, in turns, from one connection. A complete reservation is every
row that one must write: the reservation, its booking, the quota, the event. The bare INSERT writes
whole bookings into a bare copy of their table, with the exclusion constraint and nothing else (no
foreign key, check or other index), 200 rows a statement.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

from apportion.authority.service import ROOT, Caller
from apportion.errors import ApportionError
from apportion.nodes.schemas import GpuReport, HostReport, Inventory
from apportion.nodes.service import import_inventories
from apportion.pools.schemas import PoolCreate
from apportion.pools.service import create_pool
from apportion.reservations.schemas import DeviceRequest, ReservationCreate
from apportion.server.system import System, running
from apportion.store.connections import transaction

BATCH = 200
ROUNDS = 5
BATCHES_A_ROUND = 20
CALLER = Caller(ROOT, "bench")
NODES, GPUS_A_NODE = 250, 8


def run() -> dict[str, float]:
    """Measure in interleaved rounds; medians over the rounds."""
    with tempfile.TemporaryDirectory() as directory:
        return asyncio.run(_measure(Path(directory)))


async def _measure(directory: Path) -> dict[str, float]:
    async with running(directory) as system:
        pool_id = await _fleet(system)
        await _bare_table(system)
        asks = _asks(pool_id)
        rows = _rows(pool_id)
        complete: list[float] = []
        bare: list[float] = []
        await _reserve(system, asks, 2)
        await _insert(system, rows, 2)
        for _ in range(ROUNDS):
            complete.append(await _reserve(system, asks, BATCHES_A_ROUND))
            bare.append(await _insert(system, rows, BATCHES_A_ROUND))
        return {
            "durable.reservations_per_second": statistics.median(complete),
            "durable.bare_insert_rows_per_second": statistics.median(bare),
            "durable.ratio_to_bare_insert": statistics.median(complete) / statistics.median(bare),
        }


async def _fleet(system: System) -> str:
    pool = await create_pool(
        system.runtime,
        CALLER,
        PoolCreate.model_validate(
            {
                "name": "bench",
                "gpu_model": "T4",
                "sharing": "timeslice",
                "policy": {"shares": 100},
                "owner_quota": {"gpu.share": "unlimited"},
            }
        ),
    )
    documents = [
        Inventory(
            node=f"n{node}",
            host=HostReport(logical_cpus=64, memory_mib=262144),
            gpus=[
                GpuReport(index=i, uuid=f"GPU-{node}-{i}", product="Tesla T4")
                for i in range(GPUS_A_NODE)
            ],
        )
        for node in range(NODES)
    ]
    await import_inventories(system.runtime, CALLER, pool.id, documents)
    return pool.id


def _asks(pool_id: str) -> Iterator[ReservationCreate]:
    number = 0
    while True:
        number += 1
        share = DeviceRequest.model_validate({"class": "gpu.share", "units": 2 + number % 7})
        yield ReservationCreate(
            name=f"r{number}",
            pool_id=pool_id,
            devices=[share],
            duration="4h",
            idempotency_key=f"r{number}",
        )


async def _reserve(system: System, asks: Iterator[ReservationCreate], batches: int) -> float:
    prepared = [list(islice(asks, BATCH)) for _ in range(batches)]
    started = time.perf_counter()
    for batch in prepared:
        outcomes = await system.reservations.create_many(CALLER, batch)
        failed = [each for each in outcomes if isinstance(each, ApportionError)]
        if failed:
            raise failed[0]
    taken = time.perf_counter() - started
    waiting = (await system.reservations.standing(CALLER)).waiting
    if waiting:
        raise RuntimeError(f"the fleet is full, so this measures refusals: {waiting}")
    return batches * BATCH / taken


async def _bare_table(system: System) -> None:
    async with transaction(system.runtime.db) as connection:
        await connection.execute(
            "CREATE TABLE bare (LIKE bookings INCLUDING DEFAULTS INCLUDING IDENTITY,"
            " EXCLUDE USING gist (gpu_id WITH =, units WITH &&, during WITH &&)"
            " WHERE (voided_at IS NULL))"
        )


Row = tuple[int, str, str, datetime, datetime]


def _rows(pool_id: str) -> Iterator[tuple[str, Row]]:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    number = 0
    while True:
        gpu, slot = number % (NODES * GPUS_A_NODE), number // (NODES * GPUS_A_NODE)
        units = f"{{[{slot},{slot + 1})}}"
        yield pool_id, (gpu, f"res_{number:026d}", units, start, start + timedelta(hours=4))
        number += 1


async def _insert(system: System, rows: Iterator[tuple[str, Row]], batches: int) -> float:
    prepared = [list(islice(rows, BATCH)) for _ in range(batches)]
    started = time.perf_counter()
    for batch in prepared:
        gpus, reservations, units, starts, ends = zip(*(row for _, row in batch), strict=True)
        async with transaction(system.runtime.db) as connection:
            await connection.execute(
                "INSERT INTO bare (tenant_id, pool_id, gpu_id, reservation_id, piece, device,"
                " class, generation, units, during, planned, share_num, share_den)"
                " SELECT 'root', %s, gpu, reservation, 0, 0, 'gpu.share', 1, units::int4multirange,"
                " tstzrange(low, high), tstzrange(low, high), 1, 100"
                " FROM unnest(%s::int[], %s::text[], %s::text[], %s::timestamptz[],"
                " %s::timestamptz[]) AS new (gpu, reservation, units, low, high)",
                [batch[0][0], *map(list, (gpus, reservations, units, starts, ends))],
            )
    return batches * BATCH / (time.perf_counter() - started)
