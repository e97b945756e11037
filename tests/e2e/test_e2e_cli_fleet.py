"""Pools, nodes, atoms, quotas, usage, events and the doctor, on a real server."""

import json
import re
import subprocess
import sys
import time

import pytest

from apportion.testing.builders import ask, device, gpu, inventory

HALVES = ("3g.40gb@0", "3g.40gb@4")


def document(node: str, *gpus, **host) -> str:
    return inventory(node, *gpus, **host).model_dump_json(by_alias=True, exclude_none=True)


def test_a_pool_is_created_filled_listed_and_shown(cli, tmp_path):
    made = cli(
        *("pool", "create", "notebooks", "--gpu-model", "H100", "--sharing", "mig"),
        *("--quota", "gpu.mig=40", "--quota", "vcpu=unlimited", "--key", "k1"),
    )
    assert made.code == 0, made.err
    assert "apportion node import notebooks FILE" in made.out
    assert ["gpu.mig", "40", "0"] in [line.split() for line in made.out.splitlines()]
    file = tmp_path / "n1.json"
    file.write_text(document("nb-1", gpu("H100", 0, *HALVES, node="nb-1"), gpu("H100", 1)))
    imported = cli("node", "import", "notebooks", str(file))
    assert imported.code == 0, imported.err
    assert imported.out.startswith("1 nodes with 2 GPUs are in notebooks")
    listed = cli("pool", "list", "--sharing", "mig", "--gpu-model", "H100")
    assert listed.out.splitlines()[0].split()[:3] == ["NAME", "MODEL", "SHARING"]
    assert "gpu.mig 0 of 40" in listed.out
    drawn = cli("pool", "show", "notebooks", "--draw")
    assert "3g.40gb free" in drawn.out
    assert "nb-1 GPU 1: NVIDIA H100 80GB HBM3, whole" in drawn.out


def test_a_pool_whose_quota_covers_nothing_of_its_class_says_so(cli):
    made = cli("pool", "create", "bare", "--gpu-model", "H100", "--sharing", "mig")
    assert "apportion quota set bare gpu.mig unlimited" in made.out


def test_the_same_key_creates_one_pool_and_another_mode_is_a_conflict(cli):
    words = ("pool", "create", "once", "--gpu-model", "T4", "--key", "k-once")
    first, again = cli(*words, "-o", "json"), cli(*words, "-o", "json")
    assert first.data["id"] == again.data["id"]
    other = cli(*words, "--sharing", "mps", "--replicas", "4")
    assert other.code == 1
    assert "--key: the same key created a pool with another sharing" in other.err


def test_policy_comes_inline_from_a_file_or_from_flags(cli, tmp_path):
    file = tmp_path / "policy.json"
    file.write_text('{"maxPending": "6h"}')
    made = cli(
        *("pool", "create", "mixed", "--gpu-model", "T4", "--sharing", "timeslice"),
        *("--replicas", "4", "--policy", str(file), "-o", "json"),
    )
    assert made.data["policy"] == {"maxPending": "6h", "replicas": 4}
    twice = cli(
        *("pool", "create", "twice", "--gpu-model", "T4", "--sharing", "mps"),
        *("--shares", "--policy", '{"shares": 100}'),
    )
    assert (twice.code, "--shares: the policy has shares too" in twice.err) == (2, True)


def test_a_list_of_nodes_shows_progress_and_stops_at_the_first_that_is_wrong(cli, server):
    pool = server.pool("T4", "exclusive")
    names = [f"{pool.name}-{at}" for at in range(12)]
    documents = [json.loads(document(name, gpu("T4", 0, node=name))) for name in names]
    said = cli("node", "import", pool.name, "-", stdin=json.dumps(documents))
    assert said.code == 0, said.err
    assert said.err.splitlines()[-1] == "12 of 12 nodes"
    documents[5]["gpus"][0]["product"] = "NVIDIA H100 80GB HBM3"
    said = cli("node", "import", pool.id, "-", stdin=json.dumps(documents))
    assert said.code == 2
    assert "FILE[5].gpus[0].product: the pool holds T4 GPUs" in said.err
    assert "Those before it are imported." in said.err


def test_nodes_are_listed_in_pages_that_join_up(cli, server):
    pool = server.pool("T4", "exclusive")
    with server.client() as client:
        for at in range(7):
            name = f"{pool.name}-{at}"
            client.join_node(pool.id, inventory(name, gpu("T4", 0, node=name)))
    everything = cli("node", "list", "--pool", pool.name, "--all", "-o", "json").data["items"]
    assert len(everything) == 7
    seen, cursor = [], ()
    while True:
        page = cli("node", "list", "--pool", pool.name, "--limit", "3", "-o", "json", *cursor).data
        seen += page["items"]
        if page["next_cursor"] is None:
            break
        cursor = ("--cursor", page["next_cursor"])
    assert seen == everything
    table = cli("node", "list", "--pool", pool.name, "--limit", "3")
    assert len(table.out.splitlines()) == 4
    assert "--cursor" in table.err


def test_a_node_is_shown_by_name_and_by_id(cli, server):
    pool = server.pool("H100", "mig", HALVES, ())
    shown = cli("node", "show", f"{pool.name}-n")
    assert "memoryGiB     256    1           256" in shown.out
    data = cli("node", "show", f"{pool.name}-n", "-o", "json").data
    assert [gpu["split"] for gpu in data["gpu_list"]] == ["mig", "none"]
    assert cli("node", "show", data["id"], "-o", "json").data["id"] == data["id"]


def test_a_name_that_several_pools_have_must_be_told_apart(cli, server):
    pools = [server.pool("T4", "exclusive") for _ in range(2)]
    with server.client() as client:
        for pool in pools:
            client.join_node(pool.id, inventory("twin", gpu("T4", 0, node=pool.name)))
    said = cli("node", "show", "twin")
    assert (said.code, "several nodes have this name" in said.err) == (2, True)
    assert cli("node", "show", "twin", "--pool", pools[0].name).code == 0


def test_atoms_say_whether_and_why_not(cli, server):
    pool = server.pool("H100", "mig", HALVES)
    said = cli("atom", "list", "--pool", pool.name)
    assert [line.split()[-1] for line in said.out.splitlines()[1:]] == ["split", "yes", "yes"]
    bookable = cli("atom", "list", "--pool", pool.name, "--bookable", "-o", "json").data["items"]
    assert [atom["share"] for atom in bookable] == ["3/7", "3/7"]
    narrow = ("--class", "gpu.mig", "--profile", "mig-3g.40gb", "--gpu", f"GPU-{pool.name}-n-0")
    assert len(cli("atom", "list", *narrow, "-o", "json").data["items"]) == 2
    assert "no: split" in cli("atom", "list", "--pool", pool.name, "--unbookable").out


def test_quotas_are_set_and_listed_exactly(cli, server):
    pool = server.pool("H100", "mig", HALVES)
    assert cli("quota", "set", pool.name, "gpu.mig", "1").out == (
        f"{pool.name} gpu.mig: limit 1, used 0, available 1\n"
    )
    cli("reserve", "--pool", pool.name, "--mig", "3g.40gb", "--host-memory-gib", "0.5", "--for=1h")
    rows = cli("quota", "list", pool.name).out.splitlines()
    assert rows[0].split() == ["POOL", "TENANT", "RESOURCE", "LIMIT", "USED", "AVAILABLE"]
    amounts = {row.split()[2]: row.split()[3:] for row in rows[1:]}
    assert amounts["gpu.mig"] == ["1", "1", "0"]
    assert amounts["memoryGiB"] == ["unlimited", "0.5", "unlimited"]
    assert amounts["gpuEquivalents"] == ["unlimited", "3/7", "unlimited"]
    assert {(row.split()[0], row.split()[1]) for row in rows[1:]} == {(pool.name, "root")}
    said = cli("reserve", "--pool", pool.name, "--mig", "3g.40gb", "--for", "1h")
    assert said.code == 1
    assert f"apportion quota set {pool.name} gpu.mig LIMIT" in said.err


def test_usage_is_exact_and_rounded(cli, server):
    pool = server.pool("A30", "mig", ("2g.12gb@0",))
    assert (
        "Nothing was used"
        in cli("usage", "--since", "2020-01-01T00:00Z", "--until=2020-01-02T00:00Z").out
    )
    with server.client() as client:
        client.create_reservation(ask(pool.id, device("gpu.mig"), duration="1h"))
    time.sleep(0.01)
    said = cli("usage")
    assert "gpu.a30.hours" in said.out
    item = next(
        each
        for each in cli("usage", "-o", "json").data["items"]
        if each["meter"] == "gpu.a30.hours"
    )
    assert "/" in item["gpu_hours"]


def test_events_are_listed_and_followed_until_stopped(cli, server):
    pool = server.pool("T4", "exclusive", ())
    said = cli("event", "list", "--subject", pool.id, "--type", "pool.")
    head, *events = said.out.splitlines()
    assert head.split()[:2] == ["TIME", "TYPE"]
    assert [re.findall(r"[a-z]+\.[a-z]+", line)[0] for line in events] == ["pool.created"]
    command = [sys.executable, "-m", "apportion", "event", "list", "--follow", "-o", "json"]
    process = subprocess.Popen(
        [*command, "--type", "quota."],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=server.environment(),
    )
    try:
        time.sleep(1.5)
        cli("quota", "set", pool.name, "gpu", "3")
        subjects = iter(json.loads(line)["subject"] for line in process.stdout)
        assert pool.id in subjects
    finally:
        process.send_signal(2)
        process.communicate()
    assert process.returncode == 130


def test_the_doctor_finds_what_is_wrong_and_says_what_to_do(cli, server):
    pool = server.pool("T4", "exclusive", ())
    with server.client() as client:
        node = f"{pool.name}-n"
        client.join_node(pool.id, inventory(node, gpu("T4", 0, node=node, failed="Xid 79")))
    said = cli("doctor")
    assert said.code == 1
    assert "cannot be booked: failed" in said.out
    assert f"{node} (no GPU can be used)" in said.out
    found = {each["check"]: each["result"] for each in cli("doctor", "-o", "json").data["findings"]}
    assert found["nodes"] == "wrong"
    with server.client() as client:
        client.join_node(pool.id, inventory(node, gpu("T4", 0, node=node)))
    assert cli("doctor").code == 0


def test_the_doctor_stops_where_no_server_answers(cli):
    said = cli("doctor", "--url", "http://127.0.0.1:9")
    assert said.code == 1
    assert "apportion up" in said.out
    assert len(said.out.splitlines()) == 5


@pytest.mark.parametrize(
    "words",
    [
        ("pool", "list", "--gpu-model", "K80"),
        ("node", "list", "--health", "degraded"),
        ("atom", "list", "--gpu", "GPU-none"),
        ("reservation", "list", "--name", "nobody"),
        ("event", "list", "--subject", "nobody"),
    ],
)
def test_an_empty_list_says_what_to_do_or_that_there_is_nothing(cli, words):
    said = cli(*words)
    assert (said.code, said.out[:2], said.err) == (0, "No", "")
    assert cli(*words, "-o", "json").data["items"] == []
