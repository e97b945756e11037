"""The MPS daemon of a GPU: run, watched, adopted, quit, and everything put back as it was found."""

import json
import os
import resource
import signal
import stat
import subprocess
from dataclasses import asdict
from fractions import Fraction

import pytest
from sharing_world import FOUR, MEMORY, until, world

from apportion.agent.sharing.environment import log_directory, pipe_directory
from apportion.nodes.schemas import UnitOutcome
from apportion.testing.mps.stand_in import CONTEXTS_MAX

QUARTER = Fraction(1, 4)


@pytest.fixture
def node():
    with world() as made:
        yield made


def record(node):
    return node.journal().read(node.gpu)


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
    assert record(node).compute_mode == "default"

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


def test_a_daemon_that_died_is_started_again_later_each_time_and_it_is_told(node):
    node.converge()
    os.kill(node.daemon().pid, signal.SIGKILL)
    until(lambda: node.daemon() is None)
    again = node.converge(after_s=60)
    assert again.done
    assert "started 2 times" in again.message
    os.kill(node.daemon().pid, signal.SIGKILL)
    until(lambda: node.daemon() is None)
    starts = node.stand_in.calls().count("-d")
    waits = node.converge(after_s=61)
    assert (waits.done, waits.reason, waits.objects) == (False, "mps_daemon_failed", (node.gpu,))
    assert "2036-12-01T09:01:02+00:00" in waits.message
    assert node.stand_in.calls().count("-d") == starts
    assert node.driver.compute_mode(node.gpu) == "exclusive_process"
    assert node.converge(after_s=62).done
    assert record(node).attempts == 3
    assert node.converge(after_s=62 + 600).done
    assert record(node).attempts == 1


@pytest.mark.parametrize("fault", ["refuses", "dies", "log_full"])
def test_a_daemon_that_does_not_start_is_told_with_its_own_words_and_tried_again(node, fault):
    node.stand_in.fault(start=fault)
    failed = node.converge()
    assert (failed.done, failed.reason, failed.objects) == (False, "mps_start_failed", (node.gpu,))
    said = {"refuses": "Failed to initialize CUDA", "dies": "died", "log_full": "No space left"}
    assert said[fault] in failed.message
    assert node.converge(after_s=1).reason == "mps_start_failed"
    waits = node.converge(after_s=2)
    assert waits.reason == "mps_daemon_failed"
    assert said[fault] in waits.message
    node.stand_in.fault()
    assert node.converge(after_s=10).done


def test_a_start_that_hangs_is_given_up_and_told(node):
    node.stand_in.fault(start="hangs")
    assert node.converge(patience_s=1).reason == "mps_start_failed"
    node.stand_in.fault()
    assert node.converge(after_s=10).done


def test_a_daemon_that_hangs_is_ended_when_nobody_is_on_the_gpu(node):
    node.converge()
    before = node.daemon()
    node.stand_in.fault(hangs=["get_default_active_thread_percentage"])
    hangs = node.converge(after_s=60, patience_s=1)
    assert (hangs.done, hangs.reason) == (False, "mps_daemon_silent")
    assert not node.ours()
    node.stand_in.fault()
    assert node.converge(after_s=120).done
    assert node.daemon() != before


def test_a_daemon_that_hangs_is_left_alone_while_a_holder_is_on_the_gpu(node):
    node.converge()
    client = node.client(QUARTER)
    node.said(client)
    before = node.daemon()
    node.stand_in.fault(hangs=["get_default_active_thread_percentage", "get_server_list"])
    for wanted in (FOUR, None):
        hangs = node.converge(wanted, after_s=60, patience_s=1)
        assert (hangs.done, hangs.reason) == (False, "mps_daemon_silent")
        assert str(client.pid) in hangs.objects
        assert node.daemon() == before


def test_a_daemon_whose_sockets_were_swept_away_is_replaced(node):
    node.converge()
    before = node.daemon()
    (pipe_directory(node.state, node.gpu) / "control").unlink()
    assert node.converge(after_s=60).reason == "mps_daemon_silent"
    assert node.converge(after_s=120).done
    assert node.daemon().pid != before.pid


def test_limits_that_the_daemon_does_not_take_are_told(node):
    node.stand_in.fault(refuses=["set_default_active_thread_percentage"])
    refused = node.converge()
    assert (refused.done, refused.reason) == (False, "mps_limits_refused")
    assert "has Limits(percentage=100" in refused.message


def test_servers_that_outlived_their_daemon_are_left_to_their_clients_and_ended_after_them(node):
    node.stand_in.fault(orphans=True)
    node.converge()
    client = node.client(QUARTER)
    server = node.said(client)["server"]
    os.kill(node.daemon().pid, signal.SIGKILL)
    until(lambda: node.daemon() is None)
    for wanted in (FOUR, None):
        waits = node.converge(wanted, after_s=60)
        assert (waits.done, waits.reason) == (False, "clients_connected")
        assert [one.pid for one in node.ours()] == [server]
    node.leave(client)
    assert node.converge(after_s=61).done
    assert server not in [one.pid for one in node.ours()]


def foreign_daemon(node, **environment):
    """Start a daemon as somebody else would; returns its pid and pipe directory."""
    pipe = node.directory / "foreign"
    pipe.mkdir()
    places = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(pipe)}
    subprocess.run([node.stand_in.control, "-d"], env={**places, **environment}, check=True)
    return int((pipe / "nvidia-cuda-mps-control.pid").read_text("utf-8")), pipe


@pytest.fixture
def alone():
    with world(alone=True) as made:
        yield made


@pytest.mark.parametrize("visible", ["its uuid", "0", "7,0", "GPU-", None])
def test_a_foreign_daemon_that_may_serve_the_gpu_is_told_and_never_touched(alone, visible):
    node = alone
    named = {"its uuid": node.gpu, "GPU-": node.gpu[:9]}.get(visible, visible)
    foreign, pipe = foreign_daemon(node, **({"CUDA_VISIBLE_DEVICES": named} if named else {}))
    for wanted in (FOUR, FOUR):
        told = node.converge(wanted)
        assert (told.done, told.reason) == (False, "foreign_daemon")
        assert told.objects == (node.gpu, str(foreign))
        assert str(pipe) in told.message
    assert node.driver.compute_mode(node.gpu) == "default"
    assert not node.journal().gpus()
    assert node.converge(None).done
    os.kill(foreign, 0)
    os.kill(foreign, signal.SIGKILL)
    until(lambda: node.converge().done)


@pytest.mark.parametrize("visible", ["7", "GPU-00000000-0000-4000-8000-000000000000"])
def test_a_daemon_that_serves_other_gpus_is_nobodys_business(node, visible):
    foreign, _ = foreign_daemon(node, CUDA_VISIBLE_DEVICES=visible)
    assert node.converge().done
    assert node.converge(None).done
    os.kill(foreign, 0)


def test_a_stale_pipe_directory_with_the_pid_of_somebody_else_is_cleared(node):
    pipe = pipe_directory(node.state, node.gpu)
    pipe.mkdir(parents=True)
    (pipe / "nvidia-cuda-mps-control.pid").write_text(f"{os.getpid()}\n", "utf-8")
    (pipe / "control").write_text("", "utf-8")
    assert node.converge().done
    assert node.daemon().pid != os.getpid()


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
    assert (record(node).boot_id, record(node).attempts) == (node.boot_id(), 1)
    assert record(node).compute_mode == "default"
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


def test_a_node_without_the_vendors_daemon_says_so(node):
    told = node.converge(mps_control="/nowhere/nvidia-cuda-mps-control")
    assert (told.done, told.reason) == (False, "mps_not_installed")
    assert node.converge(None).done
    assert node.driver.compute_mode(node.gpu) == "default"


def test_limits_of_the_agents_own_environment_do_not_reach_the_daemon(node, monkeypatch):
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "3")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/nowhere")
    assert node.converge().done
    assert node.said(node.client(Fraction(1)))["percentage"] == 25
    names = {name for name in node.daemon().environment if name.startswith("CUDA_")}
    assert names == {
        "CUDA_VISIBLE_DEVICES",
        "CUDA_MPS_PIPE_DIRECTORY",
        "CUDA_MPS_LOG_DIRECTORY",
    }


def test_a_process_that_connects_while_the_daemon_quits_is_waited_for_and_never_ended(node):
    node.converge()
    clients = []

    def connects(point):
        if point == "after quitting" and not clients:
            clients.append(node.client(QUARTER))
            assert node.said(clients[0])["percentage"] == 25

    waits = node.converge(None, patience_s=1, told=connects)
    assert (waits.done, waits.reason) == (False, "mps_quit_waits")
    assert clients[0].poll() is None
    assert node.driver.compute_mode(node.gpu) == "exclusive_process"
    assert node.converge(None, patience_s=1).reason == "clients_connected"
    node.leave(clients[0])
    until(lambda: node.converge(None).done)
    assert node.driver.compute_mode(node.gpu) == "default"


def test_an_answer_that_is_not_understood_is_never_taken_for_nobody_connected(node):
    node.converge()
    node.said(node.client(QUARTER))
    node.stand_in.fault(refuses=["get_client_list"])
    told = node.converge(None)
    assert (told.done, told.reason) == (False, "mps_answer_unknown")
    assert "get_client_list: operation not permitted" in told.message
    assert "quit" not in node.stand_in.calls()
