"""Importing the fleet and placing its tasks, through the same services that the API uses.

Every step is a retry of itself: keys make the second run find what the first one made, so a run
that was cut short is taken up where it stopped.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from time import perf_counter
from typing import Final

from apportion.authority.service import Caller
from apportion.demo import mig, trace
from apportion.errors import ApportionError
from apportion.nodes.service import import_inventories, list_nodes
from apportion.pools.schemas import PoolCreate
from apportion.pools.service import create_pool
from apportion.quantities.ids import derive_id
from apportion.reservations.schemas import ReservationCreate
from apportion.reservations.service import Reservations
from apportion.store.runtime import Runtime

BATCH: Final = 200
"""Tasks placed in one transaction."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the job is: what it does, and how much of how many are done."""

    stage: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Work:
    """What one run did: tasks decided, and the seconds that took; both 0 on a kept state."""

    decided: int
    seconds: float


Report = Callable[[Progress], None]


async def run(runtime: Runtime, reservations: Reservations, caller: Caller, report: Report) -> Work:
    """Bring the demo's fleet and tasks into the database, or find that they are there."""
    fleet = trace.nodes_by_model()
    total = sum(map(len, fleet.values()))
    done = 0
    pool_ids: list[str] = []
    for model, documents in fleet.items():
        pool_id = await _pool(runtime, caller, _shared_pool(model))
        pool_ids.append(pool_id)
        done += len(documents)
        if not await _has_nodes(runtime, caller, pool_id):
            await import_inventories(runtime, caller, pool_id, documents)
            report(Progress("importing nodes", done, total))
    await _mig(runtime, reservations, caller)
    # The last task stands for all: they are placed in order.
    if await reservations.get_many(caller, [_id(caller, trace.LAST_TASK)]):
        return Work(0, 0.0)
    return await _tasks(reservations, caller, list(trace.tasks(pool_ids)), report)


async def _tasks(
    reservations: Reservations, caller: Caller, asks: Sequence[ReservationCreate], report: Report
) -> Work:
    started = perf_counter()
    done = 0
    for batch in _batches(asks):
        for outcome in await reservations.create_many(caller, batch):
            if isinstance(outcome, ApportionError):
                raise outcome
        done += len(batch)
        report(Progress("placing tasks", done, len(asks)))
    return Work(done, perf_counter() - started)


async def _mig(runtime: Runtime, reservations: Reservations, caller: Caller) -> None:
    pool_id = await _pool(runtime, caller, _mig_pool())
    if not await _has_nodes(runtime, caller, pool_id):
        await import_inventories(runtime, caller, pool_id, [mig.node()])
    people = mig.people(pool_id, runtime.now())
    there = await reservations.get_many(
        caller, [_id(caller, person.idempotency_key) for person in people]
    )
    missing = [person for person in people if _id(caller, person.idempotency_key) not in there]
    for outcome in await reservations.create_many(caller, missing):
        if isinstance(outcome, ApportionError):
            raise outcome


async def _pool(runtime: Runtime, caller: Caller, request: PoolCreate) -> str:
    return (await create_pool(runtime, caller, request)).id


async def _has_nodes(runtime: Runtime, caller: Caller, pool_id: str) -> bool:
    return bool(await list_nodes(runtime, caller, pool_id=pool_id, limit=1))


def _shared_pool(model: str) -> PoolCreate:
    return PoolCreate.model_validate(
        {
            "name": f"openb-{model.lower()}",
            "gpu_model": model,
            "sharing": "timeslice",
            "policy": {"shares": 100},
            "owner_quota": {
                "gpu.share": "unlimited",
                "vcpu": "unlimited",
                "memoryGiB": "unlimited",
            },
            "idempotency_key": f"demo/openb-{model.lower()}",
        }
    )


def _mig_pool() -> PoolCreate:
    return PoolCreate.model_validate(
        {
            "name": mig.POOL,
            "gpu_model": "H100",
            "sharing": "mig",
            "owner_quota": {
                "gpu": "unlimited",
                "gpu.mig": "unlimited",
                "vcpu": "unlimited",
                "memoryGiB": "unlimited",
            },
            "idempotency_key": f"demo/{mig.POOL}",
        }
    )


def _id(caller: Caller, key: str | None) -> str:
    return derive_id("res", caller.tenant_id, caller.actor, key or "")


def _batches(asks: Iterable[ReservationCreate]) -> Iterator[list[ReservationCreate]]:
    rest = iter(asks)
    while batch := list(islice(rest, BATCH)):
        yield batch
