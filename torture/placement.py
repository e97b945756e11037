"""Several server processes on one pool of instances, while they and their database are killed.

Callers reserve for seconds, alone and in batches, extend, shorten and release, and ask again with
the same key till they have an answer. Connections end, processes get SIGKILL, the database crashes
and recovers. At any moment no slice has two holders and every count is right; at the end every
answer that was given still holds, and the whole pool can be had again: nothing was leaked.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any, Final, TypeVar, get_args

import psycopg
from psycopg import AsyncConnection

from apportion.client import AsyncClient
from apportion.client.answers import mark_uncertain
from apportion.errors import ApportionError, UnavailableError
from apportion.pools.policy import PlacementPolicy
from apportion.pools.schemas import OfferPut
from apportion.reservations.schemas import ReservationCreate, ReservationUpdate, ReservationView
from apportion.tenants.schemas import TenantCreate
from apportion.testing.auditor import audit
from apportion.testing.builders import ask, device, gpu, inventory, pool_of
from torture.crowd import Report, Step, crowd, kill_connections, stop
from torture.ledger import Told, compare, judge, lateness, overdue
from torture.machines import CRASHES, Database, Server, Servers, machines

T = TypeVar("T")

SERVERS: Final = 3
WORKERS: Final = 24
PATIENCE_SECONDS: Final = 20
"""Whatever is killed, somebody else has done its work by then, on a machine that is busy too."""
LEAST: Final = {
    "bookings": 90,
    "refusals": 60,
    "kills": 30,
    "servers killed": 3,
    "database crashes": 3,
    "changed ends": 12,
}
_CUTS: Final = (
    tuple(f"1g.10gb@{start}" for start in range(7)),
    ("3g.40gb@0", "3g.40gb@4"),
    ("4g.40gb@0", "2g.20gb@4", "1g.10gb@6"),
    (),
)
_NODES: Final = 3
_PROFILES: Final = ("1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb")
_ALL: Final = {"1g.10gb": 8, "2g.20gb": 1, "3g.40gb": 2, "4g.40gb": 1}
"""How many of each there are on a node, beside its one GPU that is not cut."""


async def attack(seconds: int, seed: int, broken: bool) -> Report:  # noqa: FBT001 - one switch
    """Attack until the time is over, then see what is left."""
    report = Report(LEAST)
    async with machines(SERVERS) as (database, servers):
        one = _Attack(report, database, servers, f"{seed}")
        await one.make_pool()
        if broken:
            await _break(database.dsn)
        chance = random.Random(f"{seed}/kills")
        killers = [
            asyncio.create_task(one.kill_servers(random.Random(f"{seed}/servers"))),
            asyncio.create_task(one.crash_database(random.Random(f"{seed}/crashes"))),
        ]
        judges = [
            asyncio.create_task(kill_connections(report, database.dsn, chance, often=0.25)),
            asyncio.create_task(one.judge_all_the_time()),
        ]
        await crowd(report, one.steps(), workers=WORKERS, seconds=seconds, seed=one.seed)
        one.over.set()
        await asyncio.gather(*killers)
        for each in judges:
            await stop(each)
        await one.judge_the_end()
    for fault in servers.written:
        report.violate(f"a server wrote: {fault}")
    return report


async def _break(dsn: str) -> None:
    """Take away what keeps two from having one slice, and lose one giving back in eight."""
    async with await AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute("ALTER TABLE bookings DROP CONSTRAINT bookings_no_overlap")
        await connection.execute(
            "CREATE FUNCTION forget() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN IF random() < 0.125 THEN RETURN NULL; END IF; RETURN NEW; END'"
        )
        await connection.execute(
            "CREATE TRIGGER forget BEFORE UPDATE ON quotas FOR EACH ROW"
            " WHEN (NEW.used < OLD.used) EXECUTE FUNCTION forget()"
        )


@dataclass(slots=True)
class _Attack:
    """The pool, those who want something of it, and those who kill."""

    report: Report
    database: Database
    servers: Servers
    seed: str
    pool_id: str = ""
    told: dict[str, Told] = field(default_factory=dict[str, Told])
    free: list[Told] = field(default_factory=list[Told])
    """Those that nobody changes at this moment."""
    over: asyncio.Event = field(default_factory=asyncio.Event)

    # -- asking ------------------------------------------------------------------------------------

    async def make_pool(self) -> None:
        """Make the pool, its nodes, and a tenant that may have some of it."""
        client = self.servers.live[0].client()
        pool = await client.create_pool(pool_of("H100", "mig", name="torture", maxPending="3s"))
        self.pool_id = pool.id
        for node in (f"n{number}" for number in range(_NODES)):
            gpus = [gpu("H100", at, *cut, node=node) for at, cut in enumerate(_CUTS)]
            await client.join_node(pool.id, inventory(node, *gpus))
        await client.create_tenant(TenantCreate(id="acme", name="Acme"))
        offer = OfferPut.model_validate({"quota": {"gpu.mig": 10, "gpu": 1, "vcpu": 4}})
        await client.offer_pool(pool.id, "acme", offer)

    async def _answer(
        self, chance: random.Random, tenant: str, work: Callable[[AsyncClient], Awaitable[T]]
    ) -> T:
        """Ask one server after another until one answers, as callers with a key may."""
        began, lost, killed_at, server = monotonic(), False, None, None
        while True:
            try:
                server = await self._any_server(chance)
                answer = await work(server.client(tenant))
            except UnavailableError as error:
                lost, killed_at = True, killed_at or (server and server.killed_at)
                self.report.counts["answers lost"] += 1
                if monotonic() - began > 2 * PATIENCE_SECONDS:
                    self.report.violate(f"nobody answered in time: {error}")
                    raise
            except ApportionError as error:
                if lost:
                    mark_uncertain(error)
                raise
            else:
                self.report.counts["answers"] += 1
                if killed_at is not None:
                    self.report.took("answer after its server was killed", monotonic() - killed_at)
                return answer

    async def _any_server(self, chance: random.Random) -> Server:
        try:
            await asyncio.wait_for(self.servers.some.wait(), 3 * PATIENCE_SECONDS)
        except TimeoutError:
            raise UnavailableError("no server has started") from None
        return chance.choice(self.servers.live)

    def steps(self) -> dict[str, tuple[int, Step]]:
        """Return what callers do, and how often of each other."""
        return {
            "reserve": (40, self._reserve),
            "reserve at two": (5, self._reserve_twice),
            "reserve many": (5, self._reserve_many),
            "release": (20, self._release),
            "changed ends": (20, self._change_end),
        }

    def _wish(self, chance: random.Random) -> ReservationCreate:
        """Draw an ask: one piece or two, or a gang; now, later, or any time before an end."""
        wanted = (
            device("gpu")
            if chance.random() < 0.1
            else device("gpu.mig", chance.choice((1, 1, 2)), profile=chance.choice(_PROFILES))
        )
        length = chance.randint(1, 4)
        request: dict[str, Any] = {"duration": f"{length}s", "vcpu": chance.choice((0, 0, 1))}
        if chance.random() < 0.4:
            request["start"] = _from_now(chance.randint(500, 3000))
        elif chance.random() < 0.3:
            request["end_before"] = _from_now(1000 * length + chance.randint(500, 3000))
        if chance.random() < 0.2:
            request["gang"] = {"members": chance.choice((2, 3)), "apart": chance.random() < 0.5}
        request["placement"] = {"policy": chance.choice((None, *get_args(PlacementPolicy)))}
        key = f"{self.seed}-{chance.getrandbits(64):x}"
        return ask(self.pool_id, wanted, key=key, **request)

    async def _reserve(self, chance: random.Random) -> None:
        tenant, wish = _tenant(chance), self._wish(chance)
        self._note(await self._answer(chance, tenant, lambda at: at.create_reservation(wish)))

    async def _reserve_twice(self, chance: random.Random) -> None:
        """Ask two servers at once for the same, with the same key: it is made once."""
        tenant, wish = _tenant(chance), self._wish(chance)
        outcomes = await asyncio.gather(
            *(
                self._answer(chance, tenant, lambda at: at.create_reservation(wish))
                for _ in range(2)
            ),
            return_exceptions=True,
        )
        views = [each for each in outcomes if isinstance(each, ReservationView)]
        for view in views:
            self._note(view)
        if len({view.id for view in views}) > 1:
            self.report.violate(f"one key made two: {[view.id for view in views]}")
        for each in outcomes:
            if isinstance(each, BaseException):
                raise each

    async def _reserve_many(self, chance: random.Random) -> None:
        tenant, wishes = _tenant(chance), [self._wish(chance) for _ in range(8)]
        batch = await self._answer(chance, tenant, lambda at: at.create_reservations(wishes))
        for answer in batch.items:
            if isinstance(answer, ApportionError):
                self.report.counts[f"refused {answer.code}"] += 1
                self.report.counts["refusals"] += 1
            else:
                self._note(answer)

    async def _release(self, chance: random.Random) -> None:
        one = self._take(chance)
        if one is None:
            return
        view = await self._answer(chance, one.tenant, lambda at: at.release_reservation(one.id))
        one.released, one.end = True, view.end

    async def _change_end(self, chance: random.Random) -> None:
        """Let one end otherwise; whatever is answered, it stays with whom it was."""
        one = self._take(chance)
        if one is None:
            return
        change = ReservationUpdate(end=_from_now(chance.randint(200, 5000)))
        try:
            view = await self._answer(
                chance, one.tenant, lambda at: at.update_reservation(one.id, change)
            )
            one.end = view.end
        except ApportionError as error:
            if error.details.get("uncertain"):  # the try before it may have been carried out
                one.end = None
            raise
        finally:
            self.free.append(one)

    def _take(self, chance: random.Random) -> Told | None:
        """Take one of the latest for oneself: two who change one would not know who came last."""
        if not self.free:
            return None
        return self.free.pop(chance.randrange(max(0, len(self.free) - 60), len(self.free)))

    def _note(self, view: ReservationView) -> None:
        if view.id in self.told:
            return
        units = frozenset((each.gpu_id, each.units) for each in view.bookings)
        told = Told(view.id, view.tenant_id, view.state, view.end, units)
        self.told[view.id] = told
        self.free.append(told)
        self.report.counts["bookings" if view.bookings else "waiting"] += 1

    # -- killing -----------------------------------------------------------------------------------

    async def kill_servers(self, chance: random.Random) -> None:
        """Kill a server process every other second, where another one is left to take over."""
        async with asyncio.TaskGroup() as starting:
            while await self._goes_on(chance.uniform(1, 3), 8):
                if len(self.servers.live) > 1:
                    self.servers.kill(chance.choice(self.servers.live))
                    self.report.counts["kills"] += 1
                    self.report.counts["servers killed"] += 1
                    starting.create_task(self.servers.start_one())

    async def crash_database(self, chance: random.Random) -> None:
        """Crash the database every few seconds, and see how soon all servers are back."""
        kinds: list[str] = []
        while await self._goes_on(chance.uniform(3, 6), 16):
            kinds = kinds or chance.sample(CRASHES, len(CRASHES))
            began = monotonic()
            await self.database.crash(kinds.pop())
            self.report.counts["database crashes"] += 1
            self.report.took("database back after its crash", monotonic() - began)
            await asyncio.gather(*(self._must_come_back(each) for each in self.servers.live))

    async def _goes_on(self, seconds: float, answers: int) -> bool:
        """Wait so long, and for so many answers, or until it is over.

        On a machine that is busy otherwise, who kills by the clock alone leaves nobody the time to
        do anything.
        """
        enough = self.report.counts["answers"] + answers
        while not self.over.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self.over.wait(), seconds)
            if self.report.counts["answers"] >= enough:
                break
            seconds = 0.1
        return not self.over.is_set()

    async def _must_come_back(self, server: Server) -> None:
        began = monotonic()
        while monotonic() - began < PATIENCE_SECONDS:
            if server.killed_at is not None:
                return
            with suppress(UnavailableError):
                await server.client().get_readiness()
                self.report.took("server ready after the database", monotonic() - began)
                return
        self.report.violate(f"a server did not find back to its database in {PATIENCE_SECONDS} s")

    # -- judging -----------------------------------------------------------------------------------

    @asynccontextmanager
    async def _look(self) -> AsyncGenerator[AsyncConnection[Any]]:
        await self.database.up.wait()
        async with await AsyncConnection.connect(
            self.database.dsn, application_name="torture"
        ) as connection:
            yield connection

    async def judge_all_the_time(self) -> None:
        """Look at all rows again and again."""
        while True:
            with suppress(psycopg.Error):  # it crashed just now
                await self._judge("while it ran")
            await asyncio.sleep(0.5)

    async def _judge(self, when: str) -> None:
        async with self._look() as connection:
            for finding in await audit(connection, datetime.now(UTC)):
                self.report.violate(f"{when}: {finding}")
            for finding in await judge(connection):
                self.report.violate(f"{when}: {finding}")
        self.report.counts["audits"] += 1

    async def judge_the_end(self) -> None:
        """Let the clock do what is due, then hold everything against what was told."""
        await self._settle()
        await self._judge("at the end")
        async with self._look() as connection:
            for finding in await compare(connection, self.told.values()):
                self.report.violate(f"at the end: {finding}")
            late = await lateness(connection)
        for each in late:
            self.report.took("window begun or ended late", each.total_seconds())
        if late and max(late) > timedelta(seconds=PATIENCE_SECONDS):
            self.report.violate(f"the clock's work was done {max(late)} late")
        await self._have_it_all()

    async def _settle(self) -> None:
        """Wait until all windows are over, and for the clock's loops to say so."""
        async with self._look() as connection:
            await asyncio.sleep(9)  # the longest window, begun as late as can be
            ends = monotonic() + PATIENCE_SECONDS
            while left := await overdue(connection, datetime.now(UTC)):
                if monotonic() > ends:
                    self.report.violate(f"the clock's loops left {left} as they were")
                    return
                await asyncio.sleep(0.1)

    async def _have_it_all(self) -> None:
        """Reserve everything there is, at once: what leaked is missing."""
        wishes = [
            ask(self.pool_id, device("gpu.mig", profile=profile), duration="1h")
            for profile, many in _ALL.items()
            for _ in range(many * _NODES)
        ] + [ask(self.pool_id, device("gpu"), duration="1h") for _ in range(_NODES)]
        batch = await self.servers.live[0].client().create_reservations(wishes)
        got = sum(isinstance(each, ReservationView) and bool(each.bookings) for each in batch.items)
        if got < len(wishes):
            self.report.violate(f"at the end only {got} of {len(wishes)} pieces can be had")


def _from_now(milliseconds: int) -> str:
    return (datetime.now(UTC) + timedelta(milliseconds=milliseconds)).isoformat()


def _tenant(chance: random.Random) -> str:
    return chance.choice(("root", "root", "acme"))
