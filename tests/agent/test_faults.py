"""Every fault of a machine by name: what its agent says, what the server shows, how it ends.

Each happens on a simulated machine to an agent with all its units, beside a real server. What the
units do about a fault in detail is held where they are tested: `test_mig_unit`,
`test_holder_devices`, `test_sharing_mps`, `test_nvml_inventory`.
"""

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from faults_world import GRACE, FaultyNode, faulty

from api_server import served as serve
from apportion.agent.nvml import open_driver
from apportion.testing.builders import Clock

__all__ = ["faulty"]

IN_USE, INSUFFICIENT = 19, 23
MAKE = "nvmlDeviceCreateGpuInstanceWithPlacement"
FILL = "nvmlGpuInstanceCreateComputeInstance"
DESTROY = "nvmlGpuInstanceDestroy"
RESET = "nvidia-smi --gpu-reset"
NOBODY = 4_194_304 + 7  # no kernel gives this pid to anybody


@pytest.fixture(scope="module")
def clock():
    return Clock()


@pytest.fixture(scope="module")
async def dsn_of_all(anyio_backend, template):
    async with template.clone() as dsn:
        yield dsn


@pytest.fixture(scope="module")
def served(dsn_of_all, clock):
    with serve(dsn_of_all, clock) as served:
        yield served


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What happens, and what both sides make of it.

    ``agent`` has for each unit that is not done the reason that it gives, and words of its message;
    ``server`` how the holder's device stands: its state, its reason, and the node's own where the
    server repeats that. ``node`` and ``holder`` are words of `node show` and `reservation explain`.
    ``mended`` ends it; then the device stands as ``after`` says, beside ``strangers`` that stay.
    """

    happens: Callable[[FaultyNode], None]
    agent: dict[str, tuple[str, str]]
    server: tuple[str, ...]
    mended: Callable[[FaultyNode], None]
    after: tuple[str, str] = ("ready", "device_there")
    node: tuple[str, ...] = ()
    holder: tuple[str, ...] = ()
    strangers: int = 0
    kind: str = "dgx-h100"
    policy: dict[str, object] = field(default_factory=dict)


def failing(function, error, *, then=lambda node: node.reserve("1g.10gb")):
    def happens(node):
        node.simulation.fail(function, error, times=0)
        then(node)

    return happens


def heal(node):
    node.simulation.heal()
    node.rounds()


def held(node):
    node.reserve("1g.10gb")
    assert node.allocation.state == "ready"


def driver_keeps_it(node):
    held(node)
    node.simulation.fail(DESTROY, IN_USE, times=0)
    node.release()


def compute_fails_and_cannot_be_undone(node):
    node.simulation.fail(DESTROY, IN_USE, times=0)
    node.simulation.fail(FILL, INSUFFICIENT, times=0)
    node.reserve("1g.10gb")
    assert [uuid for _, _, uuid in node.instances()] == [None]


def somebody_is_on_it(node):
    held(node)
    node.simulation.hold(node.gpu, NOBODY, gpu_instance=node.gi_id, compute=0)
    node.release()
    node.pass_time(2 * GRACE)


def lost(node):
    held(node)
    node.simulation.lose(node.gpu)
    node.rounds()


def fatal(node):
    held(node)
    node.simulation.xid(node.gpu, 79)
    node.rounds()


def reset(node):
    node.simulation.reset(node.gpu)
    node.rounds()


def fatal_for_one_instance(node):
    held(node)
    node.simulation.xid(node.gpu, 94, gpu_instance=node.gi_id, compute=0)
    node.rounds()
    # The rest of the GPU is as bookable as before.
    beside = node.client.create_reservation(
        {"pool_id": node.pool_id, "devices": one("1g.10gb"), "duration": "1h"}
    )
    assert beside.bookings[0].gpu_id == node.booking.gpu_id
    node.client.release_reservation(beside.id)
    node.rounds()


def one(profile):
    chosen = {"key": "migProfile", "op": "In", "values": [profile]}
    return [{"class": "gpu.mig", "selector": {"matchExpressions": [chosen]}}]


def made_anew_by_others(node):
    held(node)
    gpu, gi_id, place = node.booking.gpu_id, node.gi_id, node.start_slice
    [before] = node.instances()
    with open_driver() as door:
        [there] = door.instances(gpu)
        door.destroy_compute(gpu, gi_id, there.computes[0].ci_id)
        door.destroy_instance(gpu, gi_id)
        profile = next(each for each in door.profiles(gpu) if each.name == "1g.10gb")
        spot = next(each for each in profile.places if each.start == place)
        door.fill_instance(gpu, door.create_instance(gpu, profile.id, spot))
    [after] = node.instances()
    assert after[:2] == before[:2]
    assert after[2] != before[2]
    node.rounds()


def made_anew_after_a_reboot(node):
    """After a reboot the instance has another UUID, and its capabilities other numbers."""
    held(node)
    [(profile, start, before)], minors = node.instances(), node.minors()
    node.reboot()
    assert node.allocation.reason["code"] == "device_there"
    [(again, place, after)] = node.instances()
    assert (again, place) == (profile, start)
    assert after != before
    assert node.booking.attributes["migUuid"] == node.env()["CUDA_VISIBLE_DEVICES"] == after
    assert len(minors) == len(node.minors()) == 2
    assert minors != node.minors()


def driver_is_slow(node):
    """While a call takes its time nothing is said, and the server misses the node."""
    node.simulation.fail(MAKE, 0, delay_ms=2000)
    waits = threading.Thread(target=node.reserve, args=("1g.10gb",))
    waits.start()
    while not node.simulation.hits(MAKE):
        assert waits.is_alive()
        time.sleep(0.02)
    for _ in range(8):
        node.clock.now += timedelta(seconds=5)
        node.served.tick()
    assert node.view.reason["code"] == "node_stale"
    waits.join()
    assert [each.data["gpus"] for each in node.events("node.stale")] == [8]
    assert len(node.events("node.returned")) == 1


def a_program_fails(node):
    held(node)
    node.simulation.xid(node.gpu, 31)
    node.rounds()


def fifty_at_once(node):
    """Fifty holders get theirs in one go; then one of them is looked at as the others are."""
    asked = {"pool_id": node.pool_id, "devices": one("1g.10gb"), "duration": "1h"}
    answer = node.client.create_reservations([asked] * 50)
    ids = [each.id for each in answer.items]
    node.rounds()
    views = [node.client.get_reservation(each) for each in ids]
    devices = {view.bookings[0].attributes["migUuid"] for view in views}
    assert {view.bookings[0].allocation.state for view in views} == {"ready"}
    assert len(devices) == len(node.env_files()) == 50
    node.held, *others = ids
    for each in others:
        node.client.release_reservation(each)
    node.rounds()
    node.served.tick()
    states = {node.client.get_reservation(each).state for each in others}
    assert states == {"ended"}


def capabilities_go(node):
    held(node)
    path = node.simulation.root / "proc/driver/nvidia-caps/mig-minors"
    node.minors = path.read_text()
    mine = f"gpu{node.gpu}/gi{node.gi_id}/"
    kept = [line for line in node.minors.splitlines() if not line.startswith(mine)]
    path.write_text("\n".join(kept) + "\n")
    node.rounds()


def capabilities_come_back(node):
    (node.simulation.root / "proc/driver/nvidia-caps/mig-minors").write_text(node.minors)
    node.rounds()


def disk_is_full_when_it_is_asked(node):
    with node.full_disk():
        node.reserve("1g.10gb")
        node.rounds()


def disk_is_full_when_it_is_to_act(node):
    failing(MAKE, INSUFFICIENT)(node)
    with node.full_disk():
        heal(node)


def released(node):
    node.release()
    node.rounds()


def nothing(node):
    """Need no mending."""


ONE = "1g.10gb at"
FAULTS = {
    "IN_USE: the driver does not let go of an instance at release": Fault(
        happens=driver_keeps_it,
        agent={"mig-layout": ("instance_in_use", f"cannot destroy {ONE}")},
        server=("withdrawn", "device_released"),
        node=("instance_in_use",),
        mended=heal,
        after=("withdrawn", "device_released"),
    ),
    "INSUFFICIENT_RESOURCES": Fault(
        happens=failing(MAKE, INSUFFICIENT),
        agent={
            "mig-layout": ("insufficient_resources", f"cannot make {ONE}"),
            "devices": ("device-missing", "there is no 1g.10gb at slice"),
        },
        server=("asked", "device_missing", "device-missing"),
        node=("insufficient_resources",),
        holder=("device_missing", "there is no 1g.10gb"),
        mended=heal,
    ),
    "GPU instance made but compute instance failed": Fault(
        happens=failing(FILL, INSUFFICIENT),
        agent={
            "mig-layout": ("compute_instance_failed", f"cannot make {ONE}"),
            "devices": ("device-missing", "there is no 1g.10gb at slice"),
        },
        server=("asked", "device_missing", "device-missing"),
        node=("compute_instance_failed",),
        holder=("device_missing",),
        mended=heal,
    ),
    "GPU instance made, compute instance failed, and neither can be undone": Fault(
        happens=compute_fails_and_cannot_be_undone,
        agent={
            "mig-layout": ("instance_in_use", f"cannot destroy {ONE}"),
            "devices": ("device-missing", "no compute instance is there"),
        },
        server=("asked", "device_missing", "device-missing"),
        node=("instance_in_use",),
        holder=("no compute instance is there",),
        mended=heal,
    ),
    "instance in use at release": Fault(
        happens=somebody_is_on_it,
        agent={
            "devices": ("holder_still_there", f"processes {NOBODY} do not leave MIG-"),
            "mig-layout": ("gpu_held", f"{ONE} . is to go, and somebody has it"),
        },
        server=("withdrawn", "holder_still_there", "holder_still_there"),
        node=("holder_still_there", "gpu_held"),
        holder=("holder_still_there", str(NOBODY)),
        mended=lambda node: (node.simulation.leave(NOBODY), node.rounds()),
        after=("withdrawn", "device_released"),
    ),
    "mode change pending for ever": Fault(
        kind="a100x8",
        policy={"modeChange": "reset"},
        happens=failing(RESET, 1, then=lambda node: node.reserve("1g.10gb")),
        agent={
            "mig-layout": ("reset_failed", "cannot be reset"),
            "devices": ("device-missing", "there is no 1g.10gb at slice"),
        },
        server=("asked", "mig_mode_changing", "device-missing"),
        node=("reset_failed",),
        holder=("mig_mode_changing",),
        mended=heal,
    ),
    "mode change pending for ever, where a reboot is allowed": Fault(
        kind="a100x8",
        policy={"modeChange": "reboot"},
        happens=failing(RESET, 1, then=lambda node: node.reserve("1g.10gb")),
        agent={
            "mig-layout": ("reboot_wanted", "cannot be reset"),
            "devices": ("device-missing", "there is no 1g.10gb at slice"),
        },
        server=("asked", "mig_mode_changing", "device-missing"),
        node=("reboot_wanted",),
        holder=("mig_mode_changing",),
        mended=lambda node: (node.simulation.heal(), node.reboot()),
    ),
    "GPU lost": Fault(
        happens=lost,
        agent={
            "mig-layout": ("gpu_failed", "failed: "),
            "devices": ("driver_gpu_lost", ""),
        },
        server=("missing", "gpu_failed", "driver_gpu_lost"),
        node=("degraded", "gpu_failed"),
        holder=("gpu_failed",),
        mended=FaultyNode.reboot,
    ),
    "XID: fatal for the GPU": Fault(
        happens=fatal,
        agent={},
        server=("missing", "gpu_failed"),
        node=("degraded", "failed: GPU-"),
        holder=("gpu_failed",),
        mended=reset,
    ),
    "XID: fatal for one instance": Fault(
        happens=fatal_for_one_instance,
        agent={},
        server=("missing", "instance_failed"),
        node=("degraded", "failed: MIG-"),
        holder=("instance_failed",),
        mended=reset,
    ),
    "XID: a program's own fault": Fault(
        happens=a_program_fails,
        agent={},
        server=("ready", "device_there"),
        node=("healthy",),
        mended=nothing,
    ),
    "UUID changed after re-creation, minor numbers changed after reboot": Fault(
        happens=made_anew_after_a_reboot,
        agent={},
        server=("ready", "device_there"),
        mended=nothing,
    ),
    "UUID changed because others made the instance again": Fault(
        happens=made_anew_by_others,
        agent={"mig-layout": ("foreign_instance", "which the agent did not make")},
        server=("ready", "device_there"),
        node=("foreign_instance",),
        mended=released,
        after=("withdrawn", "device_released"),
        strangers=1,
    ),
    "slow calls": Fault(
        happens=driver_is_slow,
        agent={},
        server=("ready", "device_there"),
        mended=nothing,
    ),
    "50 assignments at once": Fault(
        happens=fifty_at_once,
        agent={},
        server=("ready", "device_there"),
        mended=nothing,
    ),
    "two capability nodes missing": Fault(
        happens=capabilities_go,
        agent={"devices": ("capability_missing", r"lists no gpu\d/gi\d+/access and no gpu\d/gi")},
        server=("missing", "device_not_bound", "capability_missing"),
        node=("capability_missing",),
        holder=("device_not_bound", "capability_missing", "ci0/access"),
        mended=capabilities_come_back,
    ),
    "agent's disk full when it is asked": Fault(
        happens=disk_is_full_when_it_is_asked,
        agent={"spec": ("state_not_written", "what is asked cannot be kept: .*File too large")},
        server=("asked", "device_asked"),
        node=("state_not_written", "File too large"),
        holder=("device_asked",),
        mended=FaultyNode.rounds,
    ),
    "agent's disk full when it is to act": Fault(
        happens=disk_is_full_when_it_is_to_act,
        agent={
            "mig-layout": ("journal_failed", "the journal: File too large"),
            "devices": ("device-missing", "there is no 1g.10gb at slice"),
        },
        server=("asked", "device_missing", "device-missing"),
        node=("journal_failed", "File too large"),
        holder=("device_missing",),
        mended=FaultyNode.rounds,
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_both_sides_say_what_is_wrong_and_how_it_ended(faulty, capsys, name):
    fault = FAULTS[name]
    node = faulty(fault.kind, policy=fault.policy)
    fault.happens(node)
    undone = {unit: each for unit, each in node.outcomes().items() if not each["done"]}
    assert {unit: each["reason"] for unit, each in undone.items()} == {
        unit: reason for unit, (reason, _) in fault.agent.items()
    }
    for unit, (_, words) in fault.agent.items():
        assert re.search(words, undone[unit]["message"]), undone[unit]["message"]
    seen = node.allocation
    told = (seen.state, seen.reason["code"], *(seen.reason.get("node") or {}).values())
    assert told[: len(fault.server)] == fault.server
    of_node, of_holder = node.said(capsys)
    for words in fault.node:
        assert words in of_node
    for words in fault.holder:
        assert words in of_holder
    fault.mended(node)
    assert (node.allocation.state, node.allocation.reason["code"]) == fault.after
    assert all(each["done"] for each in node.outcomes().values())
    left = {"ready": [".env", ".json"], "withdrawn": []}[node.allocation.state]
    assert node.handed_out() == left
    there = [uuid for _, _, uuid in node.instances()]
    assert there[fault.strangers :] == ([node.env()["CUDA_VISIBLE_DEVICES"]] if left else [])
