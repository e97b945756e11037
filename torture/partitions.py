"""Placers race on one MIG pool while its nodes are cut otherwise, through the gate, all the time.

Two servers place and two gates advance; simulated nodes read what they are to be, cut their GPUs,
and report, late, twice, out of order; connections die on the way. Judged by raw rows in snapshots
of their own: never two bookings on one unit at an instant, never instances of two layouts of a GPU
live at once, nobody live on a node that was granted; and by the machines: no instance goes while
somebody has it.
"""

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import DictRow, dict_row

from apportion.authority.service import ROOT, Caller, ensure_root
from apportion.bookings.service import LiveBooking
from apportion.errors import ApportionError
from apportion.nodes.schemas import NodeReport
from apportion.nodes.service import import_inventories, sync_placements
from apportion.partitions import turn
from apportion.partitions.schemas import LayoutAsk
from apportion.partitions.service import Gate, get_spec, set_layout, take_report
from apportion.pools.service import create_pool
from apportion.reservations.service import Reservations
from apportion.store.connections import Connection, open_pool, transaction
from apportion.store.runtime import Runtime
from apportion.testing.builders import KEY, ask, device, pool_of
from apportion.testing.nodes import SimulatedNode
from apportion.testing.postgres import make_template, running
from torture.crowd import Report, Step, crowd, kill_connections, stop

WORKERS = 16
NODES = 4
GPUS = 2
# Of how many in ten seconds at least: on two slow cores.
LEAST = {"bookings": 120, "repartitions": 12, "refusals": 60}
LAYOUTS = ("all-1g.10gb", "mixed:2x3g.40gb", "mixed:3g.40gb+2x2g.20gb", "all-2g.20gb")
PROFILES = ("1g.10gb", "2g.20gb", "3g.40gb")
CALLER = Caller(ROOT, "torture", ancestors=(ROOT,))

Row = Mapping[str, Any]

_LIVE = """
    SELECT gpus.uuid, nodes.name AS node, gpus.index, reservation_id, partition_id, profile, start,
        bookings.generation,
        ARRAY[lower(bookings.units), coalesce(upper(bookings.units), 8)] AS slices,
        extract(epoch FROM lower(during)) AS begins, extract(epoch FROM upper(during)) AS ends,
        during @> clock_timestamp() AS now, state
    FROM bookings
    JOIN gpus ON gpus.id = bookings.gpu_id
    JOIN nodes ON nodes.id = gpus.node_id
    LEFT JOIN node_layouts ON node_layouts.node_id = nodes.id
    LEFT JOIN atoms ON atoms.id = atom_id
    WHERE voided_at IS NULL"""


async def attack(seconds: int, seed: int, broken: bool) -> Report:  # noqa: FBT001 - one switch
    """Attack until the time is over, then let every change end."""
    report = Report(LEAST)
    with running() as server:
        template = await make_template(server)
        async with template.clone() as dsn, open_pool(dsn, size=24) as db:
            runtime = Runtime(db, key=KEY)
            async with transaction(db) as connection:
                await ensure_root(runtime, connection)
                await sync_placements(connection)
            async with _breaking(dsn, broken=broken):
                await _Attack(runtime, report, dsn, seed).run(seconds)
    return report


@asynccontextmanager
async def _breaking(dsn: str, *, broken: bool) -> AsyncGenerator[None]:
    """Take the protection away for the block: the constraint, and the gate's eyes for holders."""
    if not broken:
        yield
        return
    async with await AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute("ALTER TABLE bookings DROP CONSTRAINT bookings_no_overlap")
    live_on = turn.bookings.live_on

    async def blind(*_: object) -> list[LiveBooking]:
        return []

    turn.bookings.live_on = blind
    try:
        yield
    finally:
        turn.bookings.live_on = live_on


@dataclass(slots=True)
class _Attack:
    """One pool, its machines, and everybody who wants something of them."""

    runtime: Runtime
    report: Report
    dsn: str
    seed: int
    pool_id: str = ""
    servers: Sequence[Reservations] = ()
    gates: Sequence[Gate] = ()
    nodes: dict[str, SimulatedNode] = field(default_factory=dict[str, SimulatedNode])
    ids: dict[str, str] = field(default_factory=dict[str, str])
    said: defaultdict[str, list[NodeReport]] = field(
        default_factory=lambda: defaultdict[str, list[NodeReport]](list)
    )
    made: list[str] = field(default_factory=list[str])

    async def run(self, seconds: int) -> None:
        """Make the pool, attack it, and see that every change comes to its end."""
        await self._make_pool()
        chance = random.Random(f"{self.seed}/kill")
        killer = asyncio.create_task(kill_connections(self.report, self.dsn, chance))
        judge = asyncio.create_task(self._judge_all_the_time())
        steps = self._steps()
        seed = str(self.seed)
        await crowd(self.report, steps, workers=WORKERS, seconds=seconds, seed=seed)
        await stop(killer)
        await stop(judge)
        await self._settle()
        async with await self._connect() as connection:
            await self._judge(connection)

    async def _make_pool(self) -> None:
        self.servers = (Reservations(self.runtime), Reservations(self.runtime))
        self.gates = (Gate(self.runtime), Gate(self.runtime))
        rollout = {"maxUnavailable": 2}
        asked = pool_of("H100", "mig", migLayout=LAYOUTS[0], rollout=rollout)
        pool = await create_pool(self.runtime, CALLER, asked)
        self.pool_id = pool.id
        for at in range(NODES):
            node = SimulatedNode(f"n{at}", "H100", gpus=GPUS, layout=LAYOUTS[0])
            documents = [node.inventory()]
            [node_id] = await import_inventories(self.runtime, CALLER, pool.id, documents)
            self.nodes[node.name], self.ids[node.name] = node, node_id
            await self._converge(node)

    def _steps(self) -> dict[str, tuple[int, Step]]:
        return {
            "reserve": (50, self._reserve),
            "release": (15, self._release),
            "change": (3, self._change),
            "gate": (10, self._advance),
            "tick": (6, self._tick),
            "node": (12, self._node),
            "late report": (4, self._late),
        }

    async def _reserve(self, chance: random.Random) -> None:
        length = chance.choice((1, 1, 2, 3))
        piece = device("gpu.mig", chance.choice((1, 1, 2)), profile=chance.choice(PROFILES))
        later = timedelta(seconds=chance.choice((0, 0, 1, 2)))
        start = self.runtime.now() + later if later else None
        request = ask(self.pool_id, piece, start=start, duration=f"{length}s")
        view = await chance.choice(self.servers).create(CALLER, request)
        if view.state == "pending":
            self.report.counts["refusals"] += 1
            await chance.choice(self.servers).release(CALLER, view.id)
            return
        self.report.counts["bookings"] += len(view.bookings)
        self.made.append(view.id)

    async def _release(self, chance: random.Random) -> None:
        if self.made:
            one = self.made.pop(chance.randrange(len(self.made)))
            await chance.choice(self.servers).release(CALLER, one)

    async def _change(self, chance: random.Random) -> None:
        request = LayoutAsk(layout=chance.choice(LAYOUTS))
        await set_layout(self.runtime, CALLER, self.pool_id, request)

    async def _advance(self, chance: random.Random) -> None:
        await chance.choice(self.gates).advance()

    async def _tick(self, chance: random.Random) -> None:
        await chance.choice(self.servers).lifecycle.advance()

    async def _node(self, chance: random.Random) -> None:
        """Let a machine do what it does next, or half of it."""
        node = self.nodes[chance.choice(list(self.nodes))]
        node.read(await get_spec(self.runtime, CALLER, self.ids[node.name]))
        if chance.random() < 0.8:
            await self._apply(node, None if chance.random() < 0.8 else [0])
        message = node.report()
        self.said[node.name].append(message)
        if chance.random() < 0.8:
            await take_report(self.runtime, CALLER, self.ids[node.name], message)

    async def _apply(self, node: SimulatedNode, some: Sequence[int] | None) -> None:
        """Cut a machine's GPUs; whoever is live there must still have what it had."""
        before = list(node.cuts)
        async with await self._connect() as connection:
            held = [row for row in await _rows(connection) if row["node"] == node.name]
        node.apply(some)
        if node.cuts != before:
            self.report.counts["repartitions"] += 1
        for row in held:
            if row["now"] and row["reservation_id"] is not None:
                instance = f"{row['profile']}@{row['start']}"
                if instance not in node.cuts[row["index"]] and instance in before[row["index"]]:
                    self.report.violate(f"{instance} of {row['uuid']} went under its holder")

    async def _late(self, chance: random.Random) -> None:
        name = chance.choice(list(self.nodes))
        if self.said[name]:
            message = chance.choice(self.said[name])
            await take_report(self.runtime, CALLER, self.ids[name], message)

    async def _converge(self, node: SimulatedNode) -> None:
        node.read(await get_spec(self.runtime, CALLER, self.ids[node.name]))
        await self._apply(node, None)
        await take_report(self.runtime, CALLER, self.ids[node.name], node.report())

    async def _settle(self) -> None:
        """Let everybody go home; then every change applies, or it could not say why not."""
        for one in self.made:
            with suppress(ApportionError):
                await self.servers[0].release(CALLER, one)
        await asyncio.sleep(5)  # the longest window
        for _ in range(3 * NODES):
            await self.gates[0].advance()
            for node in self.nodes.values():
                await self._converge(node)
        async with await self._connect() as connection:
            cursor = await connection.execute(
                "SELECT node_id, state, reason FROM node_layouts WHERE state <> 'settled'"
            )
            for row in await cursor.fetchall():
                self.report.violate(f"node {row['node_id']} is {row['state']}: {row['reason']}")

    # -- the judge ---------------------------------------------------------------------------------

    async def _connect(self) -> Connection:
        connection = await AsyncConnection[DictRow].connect(
            self.dsn, autocommit=True, application_name="torture"
        )
        connection.row_factory = dict_row
        return connection

    async def _judge_all_the_time(self) -> None:
        async with await self._connect() as connection:
            while True:
                await self._judge(connection)
                await asyncio.sleep(0.05)

    async def _judge(self, connection: Connection) -> None:
        self.report.counts["judged"] += 1
        rows = await _rows(connection)
        by_gpu: defaultdict[str, list[Row]] = defaultdict(list)
        for row in rows:
            by_gpu[row["uuid"]].append(row)
        for uuid, own in by_gpu.items():
            for text in (*_overlaps(own), *_mixed(own)):
                self.report.violate(f"{uuid}: {text}")


async def _rows(connection: Connection) -> list[DictRow]:
    cursor = await connection.execute(_LIVE)
    return await cursor.fetchall()


def _overlaps(own: Sequence[Row]) -> Iterator[str]:
    """Walk along the time of each slice: whoever begins must find it left."""
    for each in range(8):
        there = [row for row in own if row["slices"][0] <= each < row["slices"][1]]
        there.sort(key=lambda row: row["begins"])
        for one, other in pairwise(there):
            if one["ends"] is None or other["begins"] < one["ends"]:
                yield f"{_holder(one)} and {_holder(other)} both have slice {each}"


def _mixed(own: Iterable[Row]) -> Iterator[str]:
    """Find instances of two layouts live at once, and holders on a node that was granted."""
    live = [row for row in own if row["now"] and row["reservation_id"] is not None]
    generations = {row["generation"] for row in live}
    if len(generations) > 1:
        yield f"atoms of the generations {sorted(generations)} are live at once"
    for row in live:
        if row["state"] == "granted":
            yield f"{row['reservation_id']} is live, and its node was granted another cut"


def _holder(row: Row) -> str:
    return str(row["reservation_id"] or row["partition_id"])
