"""The agent against a real server: what it says gets there in its order, whatever happens."""

import json
import stat

import anyio
import httpx2
import pytest

from apportion.agent.identity import kept, link_of
from apportion.agent.joining import join
from apportion.agent.loop import Described, Loop
from apportion.agent.units import Outcome
from apportion.agent.uplink import Uplink
from apportion.errors import InvalidStateError, UnauthenticatedError, UnavailableError
from apportion.server.app import create_app
from apportion.store.connections import transaction
from apportion.store.runtime import Runtime
from apportion.testing.builders import gpu, inventory, pool_of
from in_loop import BASE, InLoop

pytestmark = pytest.mark.anyio


class Line(httpx2.BaseTransport):
    """The way to the server, which can be cut before or after it has heard."""

    def __init__(self, app):
        self.way = InLoop(app)
        self.cut = None

    def handle_request(self, request):
        if self.cut == "before":
            raise httpx2.ConnectError("no way there")
        answer = self.way.handle_request(request)
        if self.cut == "after":
            raise httpx2.ReadError("no way back")
        return answer


class Devices:
    """The unit that every spec asks for, done by a word."""

    name = "devices"

    def __init__(self):
        self.outcome = Outcome(done=True)
        self.asked = []

    def converge(self, wanted, now):
        self.asked.append((wanted, now))
        return self.outcome


class Node:
    """A machine with an agent: its state on disk, and lives of the agent that come and go."""

    def __init__(self, state, line, clock):
        self.state, self.line, self.clock = state, line, clock
        self.unit = Devices()
        self.document = document_of()
        self.chance = iter(range(1, 10_000))

    def entropy(self, count):
        return next(self.chance).to_bytes(count, "big")

    def join(self, token):
        how = {"now": self.clock, "entropy": self.entropy, "transport": self.line}
        return join(self.state, BASE, token, self.document, **how)

    def start(self, most=1000):
        """Begin a life of the agent with what the last one left."""
        link = link_of(self.state, now=self.clock, entropy=self.entropy, transport=self.line)
        self.uplink = Uplink(self.state, link, most=most)
        machine = Described(document=lambda: self.document, acting=[self.unit])
        self.loop = Loop(self.state, link, self.uplink, machine, self.clock)
        return self

    def round(self):
        self.clock.advance(seconds=10)
        return self.loop.round()

    @property
    def spooled(self):
        return sorted(int(each.stem) for each in (self.state / "spool").glob("*.json"))


def document_of(**changes):
    document = inventory("m1", gpu("H100", 0, node="m1", **changes), agent="apportion")
    return document.model_dump(mode="json", by_alias=True)


@pytest.fixture
def line(app):
    return Line(app)


@pytest.fixture
def node(tmp_path, line, clock):
    return Node(tmp_path / "agent", line, clock)


@pytest.fixture
async def token(with_client):
    def make(client):
        pool = client.create_pool(pool_of("H100", name="p"))
        return client.create_join_token(pool.id, {"name": "m"}).token

    return await with_client(make)


def on_node(work):
    return anyio.to_thread.run_sync(work)


@pytest.fixture
async def running(node, token):
    await on_node(lambda: node.join(token))
    await on_node(lambda: node.start().round())
    return node


async def row(runtime):
    async with transaction(runtime.db) as connection:
        cursor = await connection.execute("SELECT * FROM nodes")
        return await cursor.fetchone()


async def events(runtime, kind):
    async with transaction(runtime.db) as connection:
        cursor = await connection.execute(
            "SELECT data FROM events WHERE type = %s ORDER BY id", [kind]
        )
        return [each["data"] for each in await cursor.fetchall()]


async def test_a_machine_joins_with_a_key_that_nobody_else_can_read(node, token, runtime):
    identity = await on_node(lambda: node.join(token))
    key = node.state / "agent.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(node.state.stat().st_mode) == 0o700
    assert (await row(runtime))["uid"] == identity.node_id
    with pytest.raises(InvalidStateError, match="already"):
        await on_node(lambda: node.join(token))
    key.chmod(0o640)
    with pytest.raises(InvalidStateError, match="0600"):
        node.start()


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_joining_can_be_repeated_after_a_crash_at_any_moment(node, token, runtime, cut):
    node.line.cut = cut
    with pytest.raises(UnavailableError):
        await on_node(lambda: node.join(token))
    assert kept(node.state) is None
    node.line.cut = None
    identity = await on_node(lambda: node.join(token))
    assert (await row(runtime))["uid"] == identity.node_id
    assert len(await events(runtime, "node.enrolled")) == 1


async def test_a_machine_that_has_not_joined_is_told_how(node):
    with pytest.raises(InvalidStateError, match="has not joined"):
        node.start()


async def test_a_round_reports_what_is_there_and_that_it_is_done(running, runtime):
    assert running.unit.asked[0][0]["assignments"] == []
    there = await row(runtime)
    assert (there["report_sequence"], there["agent"]) == (1, "apportion")
    assert there["converged_at"] is not None
    assert running.spooled == []
    assert await on_node(running.round) == 10


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_reports_wait_through_an_outage_and_arrive_in_their_order(running, runtime, cut):
    running.line.cut = cut
    for numa in range(5):
        running.document = document_of(numa_node=numa)
        assert await on_node(running.round) == 10  # it goes on by the spec that it has
    assert running.spooled == [2, 3, 4, 5, 6]
    assert len(running.unit.asked) == 6
    heard = 2 if cut == "after" else 1
    assert (await row(runtime))["report_sequence"] == heard
    running.line.cut = None
    await on_node(running.round)
    assert running.spooled == []
    assert (await row(runtime))["report_sequence"] == 7
    assert await events(runtime, "node.reports_missed") == []
    reported = await events(runtime, "node.reported")
    assert len(reported) == 6  # the first one and the last two say the same


async def test_a_new_life_of_the_agent_sends_what_the_last_one_left(running, runtime):
    running.line.cut = "before"
    for _ in range(3):
        await on_node(running.round)
    running.start()
    assert running.spooled == [2, 3, 4]
    await on_node(running.round)
    running.line.cut = None
    running.start()
    await on_node(running.round)
    assert (await row(runtime))["report_sequence"] == 6
    assert await events(runtime, "node.reports_missed") == []


async def test_what_is_asked_outlives_the_agent_and_the_server(running):
    running.line.cut = "before"
    running.start()
    assert running.loop.spec is not None
    await on_node(running.round)
    assert running.unit.asked[-1][0]["assignments"] == []


async def test_there_is_an_end_to_what_is_kept_and_the_gap_is_told(running, runtime):
    running.line.cut = "before"
    running.start(most=3)
    for _ in range(7):
        await on_node(running.round)
    assert running.spooled == [6, 7, 8]
    running.line.cut = None
    await on_node(running.round)
    [gap] = await events(runtime, "node.reports_missed")
    assert (gap["first"], gap["last"]) == (2, 6)
    assert (await row(runtime))["report_sequence"] == 9


async def test_a_report_that_the_disk_lost_holds_up_no_other(running, runtime):
    running.line.cut = "before"
    for _ in range(3):
        await on_node(running.round)
    (running.state / "spool" / f"{3:020}.json").write_bytes(b"\0\0\0")
    running.line.cut = None
    running.start()
    await on_node(running.round)
    assert (await row(runtime))["report_sequence"] == 5
    assert len(await events(runtime, "node.reports_missed")) == 1


async def test_a_disk_that_takes_nothing_keeps_no_report_from_getting_there(running, runtime):
    (running.state / "spool").rename(running.state / "gone")
    for number in range(2, 5):
        await on_node(running.round)
        assert (await row(runtime))["report_sequence"] == number
    running.line.cut = "before"
    for _ in range(3):  # one is kept in memory, the newest
        await on_node(running.round)
    running.line.cut = None
    (running.state / "gone").rename(running.state / "spool")
    await on_node(running.round)
    assert (await row(runtime))["report_sequence"] == 8
    [gap] = await events(runtime, "node.reports_missed")
    assert (gap["first"], gap["last"]) == (5, 6)


async def test_a_state_that_was_lost_counts_on_from_what_the_server_has(running, runtime):
    for _ in range(4):
        await on_node(running.round)
    (running.state / "sequence").unlink()
    running.start()
    for _ in range(2):
        await on_node(running.round)
    assert (await row(runtime))["report_sequence"] == 6


async def test_a_report_that_the_server_never_takes_is_set_aside(running, runtime):
    good = running.document
    running.document = {**good, "node": "another"}
    await on_node(running.round)
    refused = [*(running.state / "spool" / "refused").glob("*.json")]
    assert [int(each.stem) for each in refused] == [2]
    assert running.spooled == []
    running.document = good
    await on_node(running.round)
    assert (await row(runtime))["report_sequence"] == 3


async def test_reports_of_a_wrong_clock_get_there_when_it_is_right(running, runtime, clock):
    right = clock.now
    running.clock = running.loop._now = running.uplink._link._now = lambda: right.replace(year=2037)
    for _ in range(2):
        await on_node(running.loop.round)
    assert running.spooled == [2, 3]
    running.loop._now = running.uplink._link._now = clock
    await on_node(running.loop.round)
    assert running.spooled == []
    assert (await row(runtime))["report_sequence"] == 4


async def test_an_answer_of_another_server_is_not_believed(running, runtime, reservations):
    impostor = Runtime(runtime.db, runtime.now, key=bytes(32))
    running.line.way = InLoop(create_app(impostor, reservations, ready=lambda: True))
    await on_node(running.round)
    assert running.spooled == [2]
    with pytest.raises(UnauthenticatedError):
        await on_node(running.uplink.drain)
    assert json.loads((running.state / "spec.json").read_bytes())["generation"] == 1


async def test_a_revoked_node_keeps_what_it_has_and_goes_on_asking(running, runtime, with_client):
    there = await row(runtime)
    await with_client(lambda client: client.revoke_node(there["uid"]))
    for _ in range(2):
        assert await on_node(running.round) == 10
    assert running.spooled == [2, 3]
    assert len(running.unit.asked) == 3


async def test_a_newer_spec_is_taken_up_at_once(running, runtime, with_client):
    there = await row(runtime)
    update = {"version": 1, "policy": {"reportInterval": "30s"}}
    await with_client(lambda client: client.update_pool(there["pool_id"], update))
    assert await on_node(running.round) == 0
    assert await on_node(running.round) == 30
    there = await row(runtime)
    assert there["observed_generation"] == there["spec_generation"]


async def test_a_unit_that_breaks_is_told_and_keeps_nothing_else_from_going_on(running, runtime):
    def converge(wanted, now):
        raise ValueError("a cable")

    running.unit.converge = converge
    await on_node(running.round)
    outcome = (await row(runtime))["outcomes"]["devices"]
    assert (outcome["done"], outcome["reason"]) == (False, "unit_broke")
    assert "a cable" in outcome["message"]
    running.loop._machine = Described(document=lambda: running.document)
    await on_node(running.round)
    assert (await row(runtime))["outcomes"]["devices"]["reason"] == "no_such_unit"


async def test_a_check_that_nobody_here_knows_passes_no_machine(
    running, runtime, with_client, monkeypatch
):
    monkeypatch.setattr("apportion.agent.acceptance._CHECKS", {})
    there = await row(runtime)
    policy = {"acceptance": [{"kind": "diag.nvml", "minutes": 1}]}
    async with transaction(runtime.db) as connection:
        await connection.execute("UPDATE nodes SET accepted_at = NULL")
    update = {"version": 1, "policy": policy}
    await with_client(lambda client: client.update_pool(there["pool_id"], update))
    await on_node(running.round)
    await on_node(running.round)
    result = (await row(runtime))["acceptance"]["diag.nvml"]
    assert result == {"passed": False, "details": {"reason": "no_such_check"}}
    monkeypatch.setattr("apportion.agent.acceptance._CHECKS", {"diag.nvml": lambda *_: iter(())})
    await on_node(running.round)
    assert (await row(runtime))["acceptance"] == {
        "diag.nvml": {"passed": True, "details": {"wrong": []}}
    }
    assert (await row(runtime))["accepted_at"] is not None
