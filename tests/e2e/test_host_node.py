"""What a pool says of its hosts, from the policy to the agent and back to who looks after them."""

import json
import os
import subprocess
import sys

import pytest
from simulated_world import simulated

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def world(open_module_path):
    with simulated(open_module_path) as world:
        yield world


def asked(world, **host):
    """Have the pool say this of its hosts, and wait until its node has heard it."""
    pool = world.client.get_pool(world.pool_id)
    policy = {**pool.policy, **host}
    world.client.update_pool(pool.id, {"version": pool.version, "policy": policy})
    generation = world.client.get_spec(world.node.node_id).generation
    return world.until(lambda: heard(world, generation))


def heard(world, generation):
    view = world.client.get_node(world.node.node_id)
    return view if (view.observed_generation or 0) >= generation else None


def command(world, *words):
    environment = {
        **os.environ,
        "APPORTION_URL": world.server.url,
        "APPORTION_TOKEN_FILE": str(world.server.token_file),
    }
    return subprocess.run(
        [sys.executable, "-m", "apportion", *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_pages_are_set_aside_what_differs_is_told_and_the_node_works_on(world):
    root = world.node.machine.root
    pages = root / "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
    governors = [*(root / "sys/devices/system/cpu/cpufreq").glob("policy*/scaling_governor")]
    for governor in governors:
        governor.write_text("powersave\n")
    view = asked(world, hugepages={"2Mi": 128}, cpu={"governor": "performance"})
    assert pages.read_text() == "128\n"
    assert (view.outcomes["hugepages"]["done"], view.reason) == (True, None)
    assert view.outcomes["cpu"]["mismatches"] == [
        {
            "field": "governor",
            "wanted": "performance",
            "found": "powersave (2 of 2)",
            "object": None,
        }
    ]
    shown = command(world, "node", "show", view.name)
    assert "cpu_differs" in shown.stdout
    assert "diag.nvml" in shown.stdout
    assert shown.stdout.count("  DONE  ") == 1
    assert view.acceptance["diag.nvml"]["passed"]
    data = json.loads(command(world, "node", "show", view.name, "-o", "json").stdout)
    assert data["outcomes"]["cpu"]["reason"] == "cpu_differs"
    found = command(world, "doctor", "-o", "json")
    findings = {each["check"]: each for each in json.loads(found.stdout)["findings"]}
    assert (found.returncode, findings["nodes.host"]["result"]) == (1, "wrong")
    assert "cpu_differs" in findings["nodes.host"]["text"]
    for governor in governors:
        governor.write_text("performance\n")
    world.until(lambda: world.client.get_node(view.id).outcomes["cpu"]["done"])
    assert command(world, "doctor").returncode == 0
    view = asked(world, hugepages=None, cpu=None)
    assert {"hugepages", "cpu"}.isdisjoint(view.outcomes)
    assert pages.read_text() == "128\n"  # nobody asks for any number: they stay


def test_a_driver_that_goes_takes_the_nodes_capacity_and_brings_it_back(world):
    machine = world.node.machine
    machine.unload_driver()
    ill = world.until(lambda: seen(world, "no_capacity"))
    assert ill.outcomes["devices"]["reason"] == "no_driver"
    assert {gpu.unbookable_reason for gpu in gpus(world)} == {"failed"}
    pending = world.reserve()
    assert pending.state == "pending"
    machine.load_driver()
    world.until(lambda: seen(world, "healthy"))
    world.until(lambda: world.client.get_reservation(pending.id).state == "active")
    world.until(lambda: world.allocation(pending.id) == "ready")
    assert world.agent.poll() is None  # the same process all the while
    world.client.release_reservation(pending.id)
    world.until(lambda: world.allocation(pending.id) == "withdrawn")


def seen(world, health):
    view = world.client.get_node(world.node.node_id)
    return view if view.health == health else None


def gpus(world):
    return world.client.list_gpus(pool_id=world.pool_id).items


def test_a_layout_of_the_nodes_own_is_made_told_and_given_up_in_its_turn(
    world, tmp_path, monkeypatch
):
    config = tmp_path / "agent.yaml"
    config.write_text("migLayout: {from: node, layout: 'mixed:2x3g.40gb'}\n")
    world.stop()
    with monkeypatch.context() as patch:
        patch.setenv("APPORTION_AGENT_CONFIG", str(config))
        world.start()
        view = world.until(lambda: own_layout(world))
    assert (view.own_layout, view.mig_layout_from) == ("mixed:2x3g.40gb", "node")
    world.until(lambda: len(world.instances()) == 16)
    assert {profile for profile, *_ in world.instances()} == {"3g.40gb"}
    shown = command(world, "node", "show", view.name).stdout
    assert "its own: mixed:2x3g.40gb" in shown
    assert "MIG layout of their own" in command(world, "doctor").stdout
    refused = command(world, "node", "set", view.name, "--mig-layout-from", "pool")
    assert (refused.returncode, "its own file" in refused.stderr) == (1, True)
    waiting = world.reserve("1g.10gb")
    assert waiting.state == "pending"
    world.stop()
    world.start()
    world.until(lambda: not own_layout(world))
    world.until(lambda: world.client.get_reservation(waiting.id).state == "active")
    world.until(lambda: [each[0] for each in world.instances()] == ["1g.10gb"])
    world.client.release_reservation(waiting.id)
    world.until(lambda: world.allocation(waiting.id) == "withdrawn")


def own_layout(world):
    view = world.client.get_node(world.node.node_id)
    return view if view.own_layout else None
