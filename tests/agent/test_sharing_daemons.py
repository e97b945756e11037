"""An MPS daemon that dies, hangs, refuses or is somebody else's is told of; no holder suffers."""

import os
import signal
import subprocess
from fractions import Fraction

import pytest
from sharing_world import FOUR, QUARTER, until, world

from apportion.agent.sharing.environment import pipe_directory


@pytest.fixture
def node():
    with world() as made:
        yield made


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
    assert node.record().attempts == 3
    assert node.converge(after_s=62 + 600).done
    assert node.record().attempts == 1


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
