"""At its end a holder is told, then made to leave, and only then its device is another's."""

import signal
from datetime import timedelta

from holder_world import HOUR, gi_of

IGNORE = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"


def gone(process):
    """Wait until a process has ended, which it was told to."""
    process.wait(timeout=20)
    return process.returncode


def test_at_its_end_the_holder_is_told_then_made_to_leave_and_only_then_it_is_released(handing):
    node = handing()
    node.ask("r.0")
    node.ask("next.0", ends=2 * HOUR)
    del node.rows["next.0"]
    assert node.states() == {"r.0": "bound"}
    with node.holder("r.0", IGNORE) as process:
        node.now += HOUR
        node.ask("next.0", ends=2 * HOUR)
        outcome, told = node.told()
        assert told["r.0"]["state"] == "ending"
        assert told["r.0"]["reason"] == "holder_leaving"
        assert str(process.pid) in told["r.0"]["message"]
        assert told["next.0"]["state"] == "waiting"
        assert (node.env("r.0"), node.spec("r.0")) == (None, None)
        assert process.poll() is None
        node.now += timedelta(seconds=29)
        node.told()
        assert process.poll() is None
        node.now += timedelta(seconds=1)
        outcome, told = node.told()
        assert told["next.0"]["state"] == "waiting"
        assert gone(process) == -signal.SIGKILL
        assert outcome.done is False
    assert node.states() == {"r.0": "released", "next.0": "bound"}


def test_a_holder_has_the_grace_of_its_pool_before_it_is_told_to_leave(handing):
    node = handing()
    node.release["grace_seconds"] = 60
    node.ask("r.0")
    node.converge()
    with node.holder("r.0", IGNORE) as process:
        node.now += HOUR
        for seconds in (0, 59):
            later = node.now + timedelta(seconds=seconds)
            outcome = node.unit().converge(node.wanted, later)
            assert (outcome.reason, process.poll()) == ("holder_in_grace", None)
            assert "10:01:00 UTC" in outcome.message
        assert (node.env("r.0"), node.spec("r.0")) == (None, None), "nobody new gets in"
        node.now += timedelta(seconds=60)
        assert node.told()[1]["r.0"]["reason"] == "holder_leaving"
        node.now += timedelta(seconds=29)
        node.told()
        assert process.poll() is None
        node.now += timedelta(seconds=1)
        node.told()
        assert gone(process) == -signal.SIGKILL
    assert node.states() == {"r.0": "released"}


def test_who_leaves_within_the_grace_is_waited_for_no_longer(handing):
    node = handing()
    node.release["grace_seconds"] = 3600
    node.ask("r.0")
    node.converge()
    with node.holder("r.0"):
        del node.rows["r.0"]
        assert node.states() == {"r.0": "ending"}
    assert node.states() == {"r.0": "released"}


def test_who_comes_and_goes_at_the_end_gets_no_grace_of_its_own(handing):
    node = handing()
    node.release |= {"grace_seconds": 60}
    node.ask("r.0")
    node.converge()
    with node.machine.change() as machine:
        machine.gpus[0].left_bytes = 4 << 30
    node.machine.fail("nvidia-smi --gpu-reset", 19, times=99)
    del node.rows["r.0"]
    assert node.told()[1]["r.0"]["state"] == "ending"
    node.now += timedelta(seconds=61)
    with node.holder("r.0") as process:
        node.told()
        node.told()
        assert gone(process) == -signal.SIGTERM


def test_a_server_that_says_nothing_of_it_gets_the_careful_way(handing):
    node = handing()
    node.ask("r.0")
    wanted = {"assignments": list(node.rows.values())}
    node.unit().converge(wanted, node.now)
    with node.machine.change() as machine:
        machine.gpus[0].left_bytes = 4 << 30
    node.machine.fail("nvidia-smi --gpu-reset", 19, times=1)
    assert not node.unit().converge({"assignments": []}, node.now).done
    outcome = node.unit().converge({"assignments": []}, node.now)
    assert outcome.reason == "memory_not_idle"


def test_a_holder_that_heeds_the_signal_goes_by_itself(handing):
    node = handing()
    node.ask("r.0")
    node.converge()
    with node.holder("r.0") as process:
        del node.rows["r.0"]
        assert node.states() == {"r.0": "ending"}
        assert gone(process) == -signal.SIGTERM
    assert node.states() == {"r.0": "released"}


def test_one_that_does_not_leave_keeps_its_device_and_says_so(handing):
    node = handing()
    node.ask("r.0")
    node.converge()
    nobody = 4_194_304 + 7  # no kernel gives this pid to anybody
    node.machine.hold(0, nobody)
    del node.rows["r.0"]
    node.ask("next.0")
    for _ in range(3):
        outcome, told = node.told()
        node.now += timedelta(seconds=31)
    assert (outcome.reason, outcome.objects) == ("holder_still_there", ("r.0",))
    assert (told["r.0"]["state"], told["next.0"]["state"]) == ("ending", "waiting")
    assert [each.gpu for each in node.unit().holds()] == [node.uuids[0]]
    node.machine.leave(nobody)
    assert node.states() == {"r.0": "released", "next.0": "bound"}


def test_only_the_holder_of_the_instance_is_told_to_leave(handing):
    node = handing()
    node.mig()
    node.make("3g.40gb", 4)
    node.make("3g.40gb", 0)
    node.ask_mig("r.0", "3g.40gb", 4)
    node.ask_mig("q.0", "3g.40gb", 0)
    node.converge()
    with (
        node.holder("r.0", gpu_instance=gi_of(node, 4), compute=0) as mine,
        node.holder("q.0", gpu_instance=gi_of(node, 0), compute=0) as other,
    ):
        del node.rows["r.0"]
        assert node.states() == {"r.0": "ending", "q.0": "bound"}
        gone(mine)
        assert node.states() == {"r.0": "released", "q.0": "bound"}
        assert other.poll() is None


def test_of_those_that_share_a_gpu_only_its_own_processes_are_told_to_leave(handing):
    node = handing()
    node.shared[node.uuids[0]] = "timeslice"
    node.ask("r.0", "gpu.slot", share="1/4", slots=[0])
    node.ask("q.0", "gpu.slot", share="1/4", slots=[1])
    node.converge()
    with node.holder("r.0") as mine, node.holder("q.0") as other:
        del node.rows["r.0"]
        assert node.states() == {"r.0": "ending", "q.0": "bound"}
        gone(mine)
        assert node.states() == {"r.0": "released", "q.0": "bound"}
        assert other.poll() is None


def test_memory_that_is_not_given_back_is_not_handed_on_before_a_reset(handing):
    node = handing()
    node.ask("r.0")
    node.converge()
    with node.machine.change() as machine:
        machine.gpus[0].left_bytes = 4 << 30
    node.machine.fail("nvidia-smi --gpu-reset", 19, times=1)
    del node.rows["r.0"]
    outcome, told = node.told()
    assert (told["r.0"]["state"], outcome.done) == ("ending", False)
    outcome, told = node.told()
    assert (outcome.reason, told["r.0"]["state"]) == ("memory_not_idle", "ending")
    with node.machine.change() as machine:
        machine.gpus[0].left_bytes = 0
    assert node.states() == {"r.0": "released"}


def test_a_whole_gpu_that_keeps_memory_is_reset_once_and_released(handing):
    node = handing()
    node.ask("r.0")
    node.converge()
    with node.machine.change() as machine:
        machine.gpus[0].left_bytes = 4 << 30
    del node.rows["r.0"]
    assert node.states() == {"r.0": "released"}
    assert node.machine.read().gpus[0].left_bytes == 0


def test_where_the_policy_asks_for_no_reset_memory_keeps_nobody_waiting(handing):
    node = handing()
    node.release["reset"] = False
    node.ask("r.0")
    node.converge()
    with node.machine.change() as machine:
        machine.gpus[0].left_bytes = 4 << 30
    del node.rows["r.0"]
    assert node.states() == {"r.0": "released"}
    assert node.machine.read().gpus[0].left_bytes == 4 << 30


def test_without_a_server_everybody_keeps_what_they_have_to_their_own_end(handing):
    node = handing()
    node.ask("r.0")
    node.ask("open.0", gpu=1, ends=None)
    unit = node.unit()
    unit.converge(node.wanted, node.now)
    assert unit.converge(None, node.now + HOUR / 2).done
    assert {row["state"] for row in unit.facts()["allocations"]} == {"bound"}
    unit.converge(None, node.now + HOUR)
    states = {row["allocation_id"]: row["state"] for row in unit.facts()["allocations"]}
    assert states == {"r.0": "released", "open.0": "bound"}


def test_an_end_that_moves_changes_nothing_for_the_holder(handing):
    node = handing()
    node.ask("r.0")
    before = node.told()[1]["r.0"]
    node.ask("r.0", ends=2 * HOUR)
    node.now += HOUR
    assert node.told()[1]["r.0"] == before
    node.now += HOUR
    assert node.states() == {"r.0": "released"}


def test_a_lost_gpu_is_taken_back_from_nobody_and_given_to_nobody(handing):
    node = handing()
    node.ask("r.0")
    node.converge()
    node.machine.lose(0)
    del node.rows["r.0"]
    outcome, told = node.told()
    assert (outcome.done, told["r.0"]["state"]) == (False, "ending")
    assert outcome.reason.startswith("driver_")
