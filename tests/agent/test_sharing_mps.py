"""A GPU that is shared by MPS: what holders get, and everything put back as it was found."""

import json
import os
import resource
import signal
import stat
import subprocess
from dataclasses import asdict
from fractions import Fraction

import pytest
from sharing_world import FOUR, MEMORY, QUARTER, until, world

from apportion.agent.sharing.environment import log_directory, pipe_directory
from apportion.nodes.schemas import UnitOutcome
from apportion.testing.mps.stand_in import CONTEXTS_MAX


@pytest.fixture
def node():
    with world() as made:
        yield made


def reboot(node):
    """Restart the machine: its processes are gone, and what the driver was told."""
    if node.daemon() is not None:
        os.kill(node.daemon().pid, signal.SIGKILL)
        until(lambda: node.daemon() is None)
    node.machine.reboot()


def test_a_gpu_is_shared_by_a_daemon_of_its_own_and_given_back_as_it_was_found(node):
    shared = node.converge()
    assert shared.done
    assert shared.message.startswith("soft: ")
    assert node.driver.compute_mode(node.gpu) == "exclusive_process"
    assert node.daemon().environment["CUDA_VISIBLE_DEVICES"] == node.gpu
    assert node.ask("get_default_active_thread_percentage") == "25.0"
    assert node.ask(f"get_default_device_pinned_mem_limit {node.gpu}") == "19G"
    assert node.record().compute_mode == "default"

    assert node.converge(None).done
    assert node.driver.compute_mode(node.gpu) == "default"
    assert not node.ours()
    assert not node.journal().gpus()
    assert not pipe_directory(node.state, node.gpu).exists()


def test_on_a_simulated_machine_the_daemon_is_found_by_the_path(node, monkeypatch):
    monkeypatch.setenv("PATH", node.machine.environment()["PATH"])
    assert node.converge(mps_control="nvidia-cuda-mps-control").done
    assert node.daemon() is not None


def test_a_second_look_changes_nothing(node):
    node.converge()
    before, calls = node.daemon(), len(node.stand_in.calls())
    assert node.converge().done
    assert node.daemon() == before
    assert all(call.startswith("get_") for call in node.stand_in.calls()[calls:])


def test_a_holder_gets_its_part_and_not_more_whatever_it_asks_for(node):
    node.converge()
    got = node.said(node.client(QUARTER))
    assert (got["percentage"], got["memory"]) == (25, {node.gpu: MEMORY // 4})
    more = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "90", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": ""}
    greedy = node.said(node.client(QUARTER, **more))
    assert (greedy["percentage"], greedy["memory"]) == (25, {node.gpu: MEMORY // 4})


def test_a_holder_of_several_slots_gets_them_in_one_process_and_the_others_keep_theirs(node):
    node.converge()
    first = node.said(node.client(QUARTER))
    node.converge({**FOUR, "widest": {node.gpu: "1/2"}})
    wide = node.said(node.client(Fraction(1, 2)))
    narrow = node.said(node.client(QUARTER))
    assert [one["percentage"] for one in (first, wide, narrow)] == [25, 50, 25]
    assert wide["memory"] == {node.gpu: MEMORY // 2}
    assert narrow["memory"] == {node.gpu: MEMORY // 4}


def test_free_shares_are_capped_by_what_the_widest_holder_has(node):
    node.converge({"mode": "mps", "shares": 100})
    assert node.ask("get_default_active_thread_percentage") == "100.0"
    node.converge({"mode": "mps", "shares": 100, "widest": {node.gpu: "81/100"}})
    assert node.said(node.client(Fraction(1)))["percentage"] == 81


def test_the_daemon_serves_48_contexts_and_says_so_to_the_next(node):
    node.converge()
    assert all("error" not in node.said(node.client(QUARTER)) for _ in range(CONTEXTS_MAX))
    assert node.said(node.client(QUARTER)) == {"error": "MPS max clients"}
    assert node.converge().done


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_another_users_process_waits_till_the_first_user_is_done(node):
    node.converge()
    first = node.client(QUARTER)
    assert node.said(first)["server"]
    with node.connect_as(65534) as second, second.makefile() as answers:
        second.settimeout(0.3)
        with pytest.raises(TimeoutError):
            answers.readline()
        assert node.converge().done
        assert len(node.ask("get_server_list").split()) == 1
        second.settimeout(10)
        node.leave(first)
    with node.connect_as(65534) as second, second.makefile() as answers:
        assert json.loads(answers.readline())["percentage"] == 25


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_holders_get_through_to_the_sockets_though_the_agent_keeps_its_directory_closed(node):
    node.state.mkdir(mode=0o700)
    before = os.umask(0o077)
    try:
        assert node.converge().done
    finally:
        os.umask(before)
    with node.connect_as(65534) as other, other.makefile() as answers:
        assert json.loads(answers.readline())["percentage"] == 25
    assert stat.S_IMODE(node.state.stat().st_mode) == 0o711
    node.state.chmod(0o700)  # as a service manager does at each start
    assert "only root" not in node.converge().message
    node.connect_as(65534).close()
    assert stat.S_IMODE((node.state / "sharing").stat().st_mode) == 0o700


def test_a_directory_of_the_operators_that_is_closed_is_told_and_left_closed(node):
    node.directory.chmod(0o700)
    assert f"only root gets to {node.state}" in node.converge().message
    assert stat.S_IMODE(node.directory.stat().st_mode) == 0o700


def test_connected_processes_are_named_and_nothing_is_torn_down(node):
    node.converge()
    client = node.client(QUARTER)
    node.said(client)
    before = node.daemon()
    left = node.converge(None)
    assert (left.done, left.reason) == (False, "clients_connected")
    assert left.objects == (node.gpu, str(client.pid))
    assert f"{client.pid} (cuda-client)" in left.message
    assert node.daemon() == before
    assert node.driver.compute_mode(node.gpu) == "exclusive_process"
    assert "quit" not in node.stand_in.calls()
    node.leave(client)
    assert node.converge(None).done


def test_what_is_told_of_many_processes_fits_into_a_report():
    with world(gpus=2) as node:
        assert node.converge().done
        for gpu in node.gpus:
            for _ in range(32):
                node.said(node.client(QUARTER, gpu))
        told = node.converge(None)
        assert UnitOutcome.model_validate(asdict(told)).reason == "clients_connected"
        assert (len(told.message), len(told.objects)) == (1000, 64)


def test_what_others_do_on_the_gpu_keeps_it_as_it_is(node):
    with subprocess.Popen(["sleep", "60"]) as stranger:
        node.hold(stranger.pid)
        told = node.converge()
        assert (told.done, told.reason) == (False, "gpu_in_use")
        assert told.objects == (node.gpu, str(stranger.pid))
        assert node.driver.compute_mode(node.gpu) == "default"
        assert not node.journal().gpus()
        stranger.kill()
    assert node.converge().done


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"mig": 1}, "gpu_in_mig_mode"),
        ({"mig_pending": 1}, "gpu_in_mig_mode"),
        ({"compute_mode": 2}, "compute_prohibited"),
    ],
)
def test_a_gpu_that_cannot_be_shared_says_why_and_starts_no_daemon(node, how, reason):
    node.change(**how)
    told = node.converge()
    assert (told.done, told.reason, told.objects) == (False, reason, (node.gpu,))
    assert node.stand_in.calls() == []


def test_one_gpu_that_cannot_does_not_keep_the_others_from_being_shared():
    with world(gpus=3) as node:
        node.change(node.gpus[1], mig=1)
        told = node.converge()
        assert (told.reason, told.objects) == ("gpu_in_mig_mode", (node.gpus[1],))
        assert [node.daemon(gpu) is not None for gpu in node.gpus] == [True, False, True]
        pipes = {node.daemon(gpu).pipe for gpu in (node.gpus[0], node.gpus[2])}
        assert len(pipes) == 2
        assert node.converge(None).done


def test_a_compute_mode_that_somebody_changed_is_set_again_while_shared_and_left_at_the_end(node):
    node.converge()
    node.change(compute_mode=0)
    assert node.converge().done
    assert node.driver.compute_mode(node.gpu) == "exclusive_process"
    node.change(compute_mode=2)
    assert node.converge(None).done
    assert node.driver.compute_mode(node.gpu) == "prohibited"


def test_a_gpu_that_was_exclusive_before_stays_so(node):
    node.change(compute_mode=3)
    assert node.converge().done
    assert node.converge(None).done
    assert node.driver.compute_mode(node.gpu) == "exclusive_process"


def test_after_a_reboot_a_new_daemon_is_no_crash_and_what_is_found_is_found_anew(node):
    node.change(compute_mode=3)
    node.converge()
    reboot(node)
    assert "started" not in node.converge().message
    assert (node.record().boot_id, node.record().attempts) == (node.boot_id(), 1)
    assert node.record().compute_mode == "default"
    reboot(node)
    assert node.converge(None).done
    assert not node.journal().gpus()
    assert not log_directory(node.state, node.gpu).exists()


def test_a_gpu_that_was_lost_is_told_till_the_next_reboot(node):
    node.converge()
    node.machine.lose(0)
    for wanted in (FOUR, None):
        told = node.converge(wanted)
        assert (told.done, told.reason, told.objects) == (False, "gpu_gone", (node.gpu,))
    reboot(node)
    assert node.converge().done


def test_a_driver_that_refuses_the_compute_mode_is_quoted_and_asked_again(node):
    node.machine.fail("nvmlDeviceSetComputeMode", 4)
    refused = node.converge()
    assert (refused.done, refused.reason) == (False, "driver_no_permission")
    assert node.stand_in.calls() == []
    assert node.converge().done


def test_nothing_is_changed_that_could_not_be_put_on_record(node):
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, most))
    try:
        told = node.converge()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    assert (told.done, told.reason) == (False, "state_not_written")
    assert "File too large" in told.message
    assert node.driver.compute_mode(node.gpu) == "default"
    assert not node.ours()
    assert node.converge().done


def test_a_place_for_sockets_that_cannot_be_made_is_told(node):
    node.state.mkdir()
    (node.state / "mps").write_text("in the way", "utf-8")
    told = node.converge()
    assert (told.done, told.reason) == (False, "state_not_written")
    assert str(node.state / "mps") in told.message
    (node.state / "mps").unlink()
    assert node.converge(after_s=60).done


def test_a_record_that_nobody_here_wrote_is_told_and_the_gpu_left_as_it_is(node):
    node.converge()
    path = node.state / "sharing" / f"{node.gpu}.json"
    path.write_text("{", "utf-8")
    for wanted in (FOUR, None):
        assert node.converge(wanted).reason == "state_unreadable"
    assert node.daemon() is not None


def test_a_path_that_no_socket_can_have_is_told_before_a_start_that_would_fail_silently(node):
    node.state = node.directory / ("d" * 60)
    told = node.converge()
    assert (told.done, told.reason) == (False, "mps_path_too_long")
    assert node.stand_in.calls() == []
