"""A layout is planned, changed, watched and cancelled from the command line, as the guide says."""

import re
import time
from pathlib import Path

from apportion.testing.builders import ask, device
from apportion.testing.nodes import SimulatedNode

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "change-a-layout.md").read_text("utf-8")
SMALL = "all-1g.10gb"


def commands(pool, node):
    """Give the guide's commands, on a pool and a node of ours."""
    lines = re.findall(r"^    apportion (.+)$|`apportion ([a-z]+ [^`]+)`", GUIDE, re.MULTILINE)
    words = [one or other for one, other in lines]
    names = {"notebooks": pool, "n1": node, "inference": pool}
    return [[names.get(word, word) for word in line.split()] for line in words]


def until(ask, true):
    """Ask until it is so: the server's clock does the rest."""
    for _ in range(100):
        answer = ask()
        if true(answer):
            return answer
        time.sleep(0.1)
    raise AssertionError(answer)


def test_the_guides_commands_do_what_it_says(cli, server):
    pool = server.pool("H100", "mig", migLayout="mixed:2x3g.40gb")
    node = SimulatedNode(f"{pool.name}-n", "H100", layout="mixed:2x3g.40gb")
    with server.client() as client:
        joined = client.join_node(pool.id, node.inventory())
        node.read(client.get_spec(joined.id))
        node.apply()
        assert client.report_node(joined.id, node.report()).accepted
        held = cli("reserve", "--pool", pool.name, "--mig", "3g.40gb", "--for", "8h", "-o", "json")
        waits = client.create_reservation(ask(pool.id, device("gpu.mig", profile="1g.10gb")))
        assert (held.code, waits.state) == (0, "pending")
        plan, setting, status, *others = commands(pool.name, node.name)
        said = cli(*plan)
        assert (said.code, held.data["id"] in said.out) == (0, True)
        fit = "1 of 1 that wait would fit empty GPUs cut so, 0 as it is"
        assert fit in said.out, said.out
        assert cli(*status).out.startswith(f"{pool.name}: 1 settled")
        assert cli(*setting).code == 0
        until(lambda: cli(*status).out, lambda out: "1 scheduled" in out)
        assert "3g.40gb" in cli(*status).out  # drawn as it is cut
        assert [cli(*each).code for each in others if each[:2] == ["layout", "cancel"]] == [0]
        said = cli(*status)
        assert (said.code, f"{pool.name}: 1 settled" in said.out) == (0, True)
        assert client.get_pool(pool.id).policy["migLayout"] == "mixed:2x3g.40gb"
        cli("reservation", "release", held.data["id"], "--yes")
        cli(*setting)
        until(lambda: cli(*status).out, lambda out: "1 granted" in out)
        assert "1 nodes are being cut anew" in cli("doctor").out
        node.read(client.get_spec(joined.id))
        node.apply()
        client.report_node(joined.id, node.report())
        [view] = client.list_layouts(pool.id).items
        assert (view.state, view.granted) == ("settled", {"migLayout": SMALL})
        assert view.grant_generation <= view.observed_generation == node.spec.generation
        assert view.gpus[0].observed == [f"1g.10gb@{at}" for at in range(7)]
        until(
            lambda: client.list_reservations(pool_id=pool.id, states=["placed"]).items,
            lambda items: len(items) == 1,
        )
        own = [each for each in others if each[:2] == ["node", "set"]]
        assert [cli(*each).code for each in own] == [0, 0]
        known = client.get_node(joined.id)
        assert (known.pinned_layout, known.mig_layout_from) == ("dynamic", "node")
        assert "(pinned)" in cli(*status).out
        said = cli("node", "set", node.name, "--mig-layout", SMALL)
        assert (said.code, "--mig-layout: it takes its MIG layout from itself" in said.err) == (
            1,
            True,
        )
        assert "is pinned" not in cli("node", "set", node.name, "--unpin").out
        assert client.get_node(joined.id).pinned_layout is None


def test_what_is_made_on_demand_is_shown_as_its_node_reports_it(cli, server):
    pool = server.pool("H100", "mig", migLayout="dynamic")
    node = SimulatedNode(f"{pool.name}-n", "H100")
    with server.client() as client:
        joined = client.join_node(pool.id, node.inventory())
        for _ in range(2):
            node.read(client.get_spec(joined.id))
            node.apply()
            client.report_node(joined.id, node.report())
            if node.made:
                break
            held = cli(
                "reserve", "--pool", pool.name, "--mig", "3g.40gb", "--for", "1h", "-o", "json"
            )
            said = cli("reservation", "show", held.data["id"])
            assert "asked (device_asked)" in said.out
        said = cli("reservation", "show", held.data["id"])
        [made] = node.made.values()
        assert (" ready" in said.out, made.uuid in said.out) == (True, True)
        assert cli("reservation", "release", held.data["id"], "--yes").code == 0


def test_slots_change_from_the_command_line(cli, server):
    pool = server.pool("T4", "mps", (), replicas=4)
    assert cli("layout", "set", pool.name, "--replicas", "8").code == 0
    until(
        lambda: cli("atom", "list", "--pool", pool.name, "--bookable", "-o", "json").data["items"],
        lambda atoms: len(atoms) == 8,
    )
    assert "slot 7" in cli("layout", "status", pool.name).out


def test_what_cannot_be_is_refused_with_the_flag_that_said_it(cli, server):
    pool = server.pool("H100", "mig", ())
    for words, field in (
        ((), "LAYOUT"),
        (("all-1g.10gb", "--shares"), "LAYOUT"),
        (("all-9g.10gb",), "LAYOUT"),
        (("--replicas", "4"), "--replicas"),
    ):
        for verb in ("set", "plan"):
            said = cli("layout", verb, pool.name, *words)
            assert (said.code, f"{field}: " in said.err) == (2, True), (verb, words, said.err)
