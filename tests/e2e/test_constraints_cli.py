"""Where an ask is to lie, from the command line; the guide's commands are run as they stand."""

from pathlib import Path

import pytest

from apportion.testing.builders import gpu, inventory

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "placement.md").read_text("utf-8")


@pytest.fixture
def pool(server):
    pool = server.pool("H100", "exclusive", *([()] * 4))
    join(server, pool, "b", "c")
    return pool


def join(server, pool, *nodes):
    with server.client() as client:
        for node in nodes:
            name = f"{pool.name}-{node}"
            reports = [gpu("H100", at, node=name, numa_node=at % 2) for at in range(4)]
            client.join_node(pool.id, inventory(name, *reports))


def test_the_guides_commands_do_what_it_says(cli, server, pool):
    join(server, pool, "d", "e", "f")
    lines = [line.strip() for line in GUIDE.splitlines() if line.startswith("    ")]
    commands = [line for line in lines if line.startswith("apportion ")]
    assert len(commands) == 7
    for command in commands:
        words = [word.strip("'") for word in command.replace("training", pool.name).split()[1:]]
        said = cli(*words)
        if words[-1] == "gpu":
            [shown] = [line for line in lines if line.startswith("--together:")]
            assert (said.code, shown in said.err) == (2, True)
        else:
            assert (said.code, said.err) == (0, "")


def test_conditions_are_echoed_and_hold(cli, pool):
    words = ("reserve", "--pool", pool.name, "--for", "1h")
    flags = ("--gpus", "2", "--together", "numa", "--policy", "best")
    made = cli(*words, *flags, "-o", "json").data
    assert made["placement"] == {
        "policy": "best",
        "together": "numa",
        "apart": False,
        "movable": False,
    }
    assert {int(each["gpu_id"][-1]) % 2 for each in made["bookings"]} in ({0}, {1})
    said = cli("reservation", "show", made["id"])
    assert "on GPUs of one NUMA node" in said.out
    assert "placed by best" in said.out


def test_a_gang_is_shown_by_member_and_waits_with_how_many_have_room(cli, pool):
    words = ("reserve", "--pool", pool.name, "--for", "1h", "--gpus", "3", "--gang")
    said = cli(*words, "3", "--gang-apart")
    assert said.code == 0
    assert "for each of 3 members, each on a node of its own" in said.out
    assert "member" in said.out
    said = cli("reserve", "--pool", pool.name, "--for", "1h", "--gpus", "1", "--gang", "4")
    assert (said.code, "room for 3 of 4 members" in said.out) == (1, True)


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        (("--gpus", "1", "--gang", "65"), "--gang: "),
        (("--gpus", "1", "--gang", "0"), "--gang: "),
        (("--gpus", "1", "--gang-apart"), "--gang-apart: "),
        (("--gpus", "1", "--policy", "exact"), "--policy"),
        (("--gpus", "1", "--together", "rack"), "--together"),
        (("--vcpu", "1", "--together", "numa"), "--together: "),
        (("--vcpu", "1", "--apart"), "--apart: "),
        (("--gpus", "2", "--together", "gpu"), "--together: "),
        (("--gpus", "1", "--together", "gpu", "--apart"), "--apart: "),
    ],
)
def test_a_bad_condition_names_its_flag(cli, pool, flags, field):
    said = cli("reserve", "--pool", pool.name, "--for", "1h", *flags)
    assert (said.code, field in said.err, said.out) == (2, True, "")


@pytest.mark.parametrize(
    ("selector", "code"),
    [
        ("gpuProduct=NVIDIA H100 80GB HBM3", 0),
        ("gpuModel=h100", 0),
        ("sharing=exclusive", 0),
        ("node={pool}-b", 0),
        ("gpuUuid=GPU-{pool}-c-3", 0),
        ("gpuIndex>2", 0),
        ("vramGiB>70", 0),
        ("vramGiB<70", 1),
        ("numaNode in (1)", 0),
        ("numaNode notin (0,1)", 1),
        ("!migProfile", 0),
        ("gpuIndex=7", 1),
    ],
)
def test_every_attribute_of_a_whole_gpu_selects(cli, pool, selector, code):
    where = selector.format(pool=pool.name)
    words = ("reserve", "--pool", pool.name, "--for", "1h", "--gpus", "1", "--select", where)
    said = cli(*words, "-o", "json")
    assert said.code == code, said.err
    assert bool(said.data["bookings"]) == (code == 0)


@pytest.mark.parametrize("selector", ["migProfile=1g.10gb", "giId=1", "ciId=0", "migUuid={mig}"])
def test_every_attribute_of_an_instance_selects(cli, server, selector):
    pool = server.pool("H100", "mig", ("1g.10gb@0", "3g.40gb@4"))
    mig = f"MIG-GPU-{pool.name}-n-0-1"
    words = ("reserve", "--pool", pool.name, "--for", "1h", "--mig", "1g.10gb", "--select")
    said = cli(*words, selector.format(mig=mig), "-o", "json")
    assert (said.code, len(said.data["bookings"])) == (0, 1)


@pytest.mark.parametrize(
    ("sharing", "policy", "selector"),
    [
        ("timeslice", {"replicas": 4}, "slots=4"),
        ("mps", {"replicas": 4}, "mpsUnits=25"),
        ("mps", {"shares": 100}, "shares=100"),
    ],
)
def test_every_attribute_of_a_part_selects(cli, server, sharing, policy, selector):
    pool = server.pool("T4", sharing, (), **policy)
    words = ("reserve", "--pool", pool.name, "--for", "1h", "--fraction", "0.25", "--select")
    assert cli(*words, selector).code == 0
    assert cli(*words, selector + "0").code == 1
