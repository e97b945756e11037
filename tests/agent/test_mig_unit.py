"""The unit `mig-layout` on simulated machines: what is asked comes to be, whatever goes wrong."""

import os
import resource
import signal
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from itertools import count

import pynvml
import pytest
from nvml_world import apart, create, fill

from apportion.agent.devices.unit import Devices
from apportion.agent.mig import Hold, Journal, MigLayout
from apportion.agent.mig.seen import look_at_all
from apportion.agent.nvml import open_driver

NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)
IN_USE, INSUFFICIENT = 19, 23


class Node:
    """An agent's view of a machine, which may be started anew at any time."""

    def __init__(self, machine, driver, folder):
        self.machine = machine
        self.driver = driver
        self.path = folder / "mig.json"
        self.held = []
        self.uuids = [each.uuid for each in look_at_all(driver)]

    def journal(self):
        return Journal(self.path, self.machine.read().boot_id.decode())

    def converge(self, unit):
        return MigLayout(self.driver, self.journal(), lambda: self.held).converge(unit, NOW)

    def there(self, gpu=0):
        """Give the instances of a GPU: profile, place, and its device's UUID."""
        seen = list(look_at_all(self.driver))[gpu]
        return {
            (each.profile, each.place.start): each.device and each.device.uuid
            for each in seen.instances
        }

    def stages(self):
        return sorted((each.profile, each.start, each.stage) for each in self.journal().entries())

    def wish(self, *instances, mig=True, gpu=0, mode_change="idle"):
        rows = [
            {"allocation_id": allocation, "profile": profile, "start": start}
            for profile, start, allocation in instances
        ]
        one = {"gpu": self.uuids[gpu], "mig": mig, "instances": rows}
        return {"layout": "dynamic", "mode_change": mode_change, "gpus": [one]}


@pytest.fixture
def node(on, tmp_path, monkeypatch):
    def start(kind="dgx-h100"):
        machine = on(kind)
        monkeypatch.setenv("PATH", machine.environment()["PATH"])
        return Node(machine, stack.enter_context(open_driver()), tmp_path)

    with ExitStack() as stack:
        yield start


def test_instances_come_and_go_without_touching_those_beside_them(node):
    node = node()
    first = node.wish(("3g.40gb", 4, "a"), ("1g.10gb", 0, "b"))
    assert node.converge(first).done
    before = node.there()
    assert set(before) == {("3g.40gb", 4), ("1g.10gb", 0)}
    node.machine.hold(0, 77, gpu_instance=_gi(node, "3g.40gb"), compute=0)
    assert node.converge(node.wish(("3g.40gb", 4, "a"), ("2g.20gb", 0, "c"))).done
    after = node.there()
    assert set(after) == {("3g.40gb", 4), ("2g.20gb", 0)}
    assert after["3g.40gb", 4] == before["3g.40gb", 4]
    assert node.stages() == [("2g.20gb", 0, "created"), ("3g.40gb", 4, "created")]


def test_the_next_holder_of_a_place_gets_an_instance_of_its_own(node):
    node = node()
    assert node.converge(node.wish(("1g.10gb", 0, "a"))).done
    [first] = node.there().values()
    assert node.converge(node.wish(("1g.10gb", 0, "a"))).done
    assert list(node.there().values()) == [first]
    assert node.converge(node.wish(("1g.10gb", 0, "b"))).done
    assert list(node.there().values()) != [first]


def test_a_holder_that_has_not_left_keeps_its_instance_and_is_told_of(node):
    node = node()
    node.converge(node.wish(("3g.40gb", 4, "a"), ("1g.10gb", 0, "b")))
    node.machine.hold(0, 77, gpu_instance=_gi(node, "3g.40gb"), compute=0)
    node.held = [Hold(gpu=node.uuids[0], start=0)]
    outcome = node.converge(node.wish(("7g.80gb", 0, "c")))
    assert (outcome.done, outcome.objects) == (False, (node.uuids[0],))
    assert outcome.reason in {"gpu_held", "instance_in_use"}
    assert "processes use it: 77" in outcome.message
    assert set(node.there()) == {("3g.40gb", 4), ("1g.10gb", 0)}
    node.machine.leave(77)
    node.held = []
    assert node.converge(node.wish(("7g.80gb", 0, "c"))).done
    assert set(node.there()) == {("7g.80gb", 0)}


def test_a_whole_gpu_is_given_by_switching_mig_off_and_others_are_cut_meanwhile(node):
    node = node()
    node.converge(node.wish(("1g.10gb", 0, "a")))
    assert node.converge(node.wish(mig=False)).done
    assert pynvml.nvmlDeviceGetMigMode(pynvml.nvmlDeviceGetHandleByIndex(0)) == [0, 0]
    assert node.converge(node.wish(("1g.10gb", 0, "b"), gpu=1)).done
    assert (node.there(0), len(node.there(1))) == ({}, 1)


def test_a_named_layout_is_applied_to_every_gpu(node):
    node = node()
    unit = {"layout": "all-balanced", "mode_change": "idle"}
    assert node.converge(unit).done
    for gpu in range(8):
        there = node.there(gpu)
        assert sorted(name for name, _ in there) == ["1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"]
        assert None not in there.values()
    before = node.there(3)
    assert node.converge(unit).done
    assert node.there(3) == before
    assert node.converge({"layout": "all-disabled", "mode_change": "idle"}).done
    assert node.there(3) == {}
    assert node.stages() == []


def test_on_ampere_the_mode_changes_with_a_reset_where_the_pool_lets(node):
    node = node("a100x8")
    unit = node.wish(("3g.40gb", 0, "a"))
    assert node.converge(unit).reason == "mode_change_needs_reset"
    assert node.converge({**unit, "mode_change": "reset"}).done
    assert set(node.there()) == {("3g.40gb", 0)}


def test_a_reset_that_fails_leaves_the_mode_pending_and_asks_for_a_reboot_where_that_is_allowed(
    node,
):
    node = node("a100x8")
    node.machine.fail("nvidia-smi --gpu-reset", 1, times=0)
    unit = node.wish(("3g.40gb", 0, "a"), mode_change="reset")
    assert node.converge(unit).reason == "reset_failed"
    assert node.converge({**unit, "mode_change": "reboot"}).reason == "reboot_wanted"
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetMigMode(handle) == [0, 1]
    node.machine.heal()
    node.machine.reboot()
    assert node.converge(unit).done
    assert set(node.there()) == {("3g.40gb", 0)}


def test_what_others_made_is_never_touched_and_only_what_it_blocks_waits(node):
    node = node()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlDeviceSetMigMode(handle, 1)
    _, device = fill(create(handle, 19, 0))
    foreign = pynvml.nvmlDeviceGetUUID(device)
    outcome = node.converge(node.wish(("3g.40gb", 0, "a"), ("3g.40gb", 4, "b")))
    assert (outcome.done, outcome.reason) == (False, "foreign_instance")
    assert node.there()["1g.10gb", 0] == foreign
    assert ("3g.40gb", 4) in node.there()
    assert node.converge(node.wish(mig=None)).done
    assert node.there() == {("1g.10gb", 0): foreign}
    assert node.converge(node.wish(mig=False)).reason == "foreign_instance"
    layout = {"layout": "all-3g.40gb", "mode_change": "idle"}
    assert node.converge(layout).reason == "foreign_instance"
    assert node.there() == {("1g.10gb", 0): foreign}


def test_an_instance_made_again_by_others_in_our_place_is_theirs(node):
    node = node()
    node.converge(node.wish(("1g.10gb", 0, "a")))
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    gi = pynvml.nvmlDeviceGetGpuInstanceById(handle, _gi(node, "1g.10gb"))
    pynvml.nvmlComputeInstanceDestroy(pynvml.nvmlGpuInstanceGetComputeInstanceById(gi, 0))
    pynvml.nvmlGpuInstanceDestroy(gi)
    fill(create(handle, 19, 0))
    assert node.converge(node.wish(mig=None)).done
    assert len(node.there()) == 1
    assert node.stages() == []


@pytest.mark.parametrize("undone", [True, False])
def test_a_gpu_instance_whose_compute_instance_fails_is_taken_away(node, undone):
    node = node()
    unit = node.wish(("1g.10gb", 6, "b"))
    node.machine.fail("nvmlGpuInstanceCreateComputeInstance", INSUFFICIENT)
    if not undone:
        node.machine.fail("nvmlGpuInstanceDestroy", IN_USE)
    outcome = node.converge(unit)
    assert not outcome.done
    if undone:
        assert outcome.reason == "compute_instance_failed"
        assert (node.there(), node.stages()) == ({}, [])
    else:
        assert node.there() == {("1g.10gb", 6): None}
        assert node.stages() == [("1g.10gb", 6, "creating")]
    assert node.converge(unit).done
    assert node.stages() == [("1g.10gb", 6, "created")]


def test_what_the_driver_refuses_is_told_as_it_is_and_tried_again(node):
    node = node()
    unit = node.wish(("1g.10gb", 6, "b"))
    node.machine.fail("nvmlDeviceCreateGpuInstanceWithPlacement", INSUFFICIENT)
    assert node.converge(unit).reason == "insufficient_resources"
    assert node.stages() == []
    assert node.converge(unit).done
    node.machine.fail("nvmlGpuInstanceDestroy", IN_USE)
    assert node.converge(node.wish()).reason == "instance_in_use"
    assert node.stages() == [("1g.10gb", 6, "destroying")]
    assert node.converge(node.wish()).done
    assert (node.there(), node.stages()) == ({}, [])


def test_a_lost_gpu_is_told_and_the_others_are_cut(node):
    node = node()
    node.machine.lose(2)
    outcome = node.converge({"layout": "all-7g.80gb", "mode_change": "idle"})
    assert (outcome.reason, outcome.objects) == ("gpu_failed", ("GPU 2",))
    assert [len(node.there(gpu)) for gpu in range(2)] == [1, 1]
    assert sum(bool(each.instances) for each in look_at_all(node.driver)) == 7


@contextmanager
def full_disk():
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_nothing_is_done_that_cannot_be_written_down(node):
    node = node()
    node.converge(node.wish(("1g.10gb", 0, "a")))
    before = node.there()
    with full_disk():
        outcome = node.converge(node.wish(("1g.10gb", 0, "a"), ("1g.10gb", 1, "b")))
    assert outcome.reason == "journal_failed"
    assert node.there() == before
    assert node.stages() == [("1g.10gb", 0, "created")]
    assert [each.name for each in node.path.parent.glob(".mig*")] == []


def test_a_reboot_leaves_nothing_of_what_was_made_and_it_is_made_again(node):
    node = node()
    unit = node.wish(("1g.10gb", 0, "a"))
    node.converge(unit)
    [before] = node.there().values()
    node.machine.reboot()
    assert node.converge(unit).done
    [after] = node.there().values()
    assert after not in {None, before}


def test_a_journal_that_nobody_can_read_makes_all_instances_strangers(node):
    node = node()
    node.converge(node.wish(("1g.10gb", 0, "a")))
    node.path.write_text('{"version": 1, "boot', encoding="utf-8")
    assert node.converge(node.wish(mig=None)).done
    assert set(node.there()) == {("1g.10gb", 0)}
    assert node.path.with_suffix(".unreadable").exists()
    assert node.converge(node.wish(("1g.10gb", 0, "b"))).reason == "foreign_instance"


def killed(node, unit, number):
    """Let an agent converge in a process of its own, killed at that point; what it passed."""

    def converge(say):
        passed = count(1)

        def told(point):
            say(point)
            if next(passed) == number:
                os.kill(os.getpid(), signal.SIGKILL)

        boot = node.machine.read().boot_id.decode()
        with open_driver() as driver:
            unit_of = MigLayout(driver, Journal(node.path, boot, told), list)
            assert unit_of.converge(unit, NOW).done

    code, passed = apart(converge)
    assert code == (-signal.SIGKILL if len(passed) == number else 0)
    return passed


def test_killed_at_any_point_of_its_journal_the_next_agent_gets_to_the_same(node):
    node = node()
    first = node.wish(("3g.40gb", 4, "a"), ("1g.10gb", 0, "b"))
    second = node.wish(("3g.40gb", 4, "a"), ("2g.20gb", 0, "c"))
    killed_at = []
    for number in range(1, 40):
        assert node.converge(first).done
        passed = killed(node, second, number)
        assert node.converge(second).done
        assert set(node.there()) == {("3g.40gb", 4), ("2g.20gb", 0)}
        assert node.stages() == [("2g.20gb", 0, "created"), ("3g.40gb", 4, "created")]
        if len(passed) < number:
            break
        killed_at.append(passed[-1])
    stages = ["destroying", "gone", "creating", "creating", "created"]
    assert killed_at == [f"{when} {stage}" for stage in stages for when in ("before", "after")]


def _gi(node, profile):
    [found] = [
        each.gi_id
        for each in next(iter(look_at_all(node.driver))).instances
        if each.profile == profile
    ]
    return found


def test_while_nobody_can_tell_who_has_which_device_nothing_is_cut(node, tmp_path):
    node = node()
    devices = Devices(
        node.driver,
        state=tmp_path,
        cdi_dir=tmp_path / "cdi",
        root=node.machine.root,
        shared_by=lambda _gpu: None,
        made_for=lambda _uuid: None,
    )
    damaged = tmp_path / "devices" / "r.0.json"
    damaged.parent.mkdir()
    damaged.write_text("{")
    unit = MigLayout(node.driver, node.journal(), devices.holds)
    outcome = unit.converge(node.wish(("1g.10gb", 0, "q.0")), NOW)
    assert (outcome.done, outcome.reason) == (False, "holders_unknown")
    assert str(damaged) in outcome.message
    assert node.there() == {}
    damaged.unlink()
    assert unit.converge(node.wish(("1g.10gb", 0, "q.0")), NOW).done
