"""Agent and daemon killed at any step: what the next agent makes of it is the same as without."""

import os
import random
import signal
from fractions import Fraction

import pytest
from sharing_world import FOUR, until, world

from apportion.agent.sharing.daemon import backoff
from apportion.agent.sharing.environment import mps_root
from apportion.agent.sharing.journal import Step

TWO = {"mode": "mps", "replicas": 2, "mps_units": 50}


def points_of(node, wanted, **how):
    """Return the points that a run passes, by a run that is not stopped."""
    points = []
    assert node.converge(wanted, told=points.append, **how).done
    return points


def killed_at(node, wanted, point, **how):
    """Run an agent in a process of its own that dies at a point; tell whether it did."""

    def die(reached):
        if reached == point:
            os.kill(os.getpid(), signal.SIGKILL)

    return dies(lambda: node.converge(wanted, told=die, **how))


def dies(act):
    child = os.fork()
    if child == 0:
        try:
            act()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def is_shared(node, percentage):
    assert node.driver.compute_mode(node.gpu) == "exclusive_process"
    assert node.ask("get_default_active_thread_percentage") == f"{percentage}.0"
    assert [one.control for one in node.ours()] == [True]
    record = node.journal().read(node.gpu)
    assert (record.step, record.compute_mode) == (Step.RUNNING, "default")
    assert record.pid == node.daemon().pid


def is_as_found(node):
    assert node.driver.compute_mode(node.gpu) == "default"
    assert not node.ours()
    assert not node.journal().gpus()
    assert not mps_root(node.state, node.gpu).exists()


@pytest.mark.parametrize("daemon_too", [False, True])
def test_killed_after_every_step_of_its_journal_it_ends_as_without_the_kill(daemon_too):
    with world() as node:
        taking, leaving = points_of(node, FOUR), points_of(node, None)
        steps = {point.split()[1] for point in taking + leaving}
        assert steps == {*Step, "gone"}
        for point in taking:
            assert killed_at(node, FOUR, point), point
            if daemon_too and (daemon := node.daemon()) is not None:
                os.kill(daemon.pid, signal.SIGKILL)
                until(lambda: node.daemon() is None)
            assert node.converge(after_s=60).done, point
            is_shared(node, 25)
            assert node.converge(None).done
            is_as_found(node)
        for point in leaving:
            assert node.converge().done
            assert killed_at(node, None, point), point
            if daemon_too and (daemon := node.daemon()) is not None:
                os.kill(daemon.pid, signal.SIGKILL)
                until(lambda: node.daemon() is None)
            assert node.converge(None).done, point
            is_as_found(node)


def test_killed_in_the_middle_of_any_command_it_ends_as_without_the_kill():
    with world() as node:
        assert node.converge().done
        assert node.converge(None).done
        commands = {call.split()[0] for call in node.stand_in.calls()}
        assert {"-d", "quit", "set_default_device_pinned_mem_limit"} <= commands
        for command in sorted(commands):
            node.stand_in.fault(kills_caller=command)
            assert any([dies(node.converge), dies(lambda: node.converge(None))]), command
            node.stand_in.fault()
            until(lambda: node.converge(after_s=60).done)
            is_shared(node, 25)
            until(lambda: node.converge(None).done)
            is_as_found(node)


def test_the_next_agent_adopts_the_daemon_and_its_clients_do_not_notice():
    with world() as node:
        assert killed_at(node, FOUR, "after running")
        before = node.daemon()
        client = node.client(Fraction(1, 4))
        assert node.said(client)["percentage"] == 25
        assert node.converge().done
        assert node.daemon() == before
        assert client.poll() is None
        assert node.stand_in.calls().count("-d") == 1


def test_a_daemon_started_just_before_the_kill_is_in_no_record_and_yet_ours():
    with world() as node:
        assert killed_at(node, FOUR, "before running")
        assert node.journal().read(node.gpu).pid is None
        before = node.daemon()
        assert node.converge().done
        assert node.daemon() == before


def test_asked_otherwise_after_a_kill_it_gives_back_first_what_was_half_taken():
    with world() as node:
        for point in points_of(node, FOUR):
            assert node.converge(None).done
            assert killed_at(node, FOUR, point), point
            assert node.converge({"mode": "timeslice", "replicas": 2}).done
            assert node.driver.compute_mode(node.gpu) == "default"
            assert not node.ours()
            assert node.journal().read(node.gpu).compute_mode == "default"


@pytest.mark.parametrize("run", range(2))
def test_whatever_happens_holders_are_never_ended_and_all_is_given_back(run):
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201
    draw = random.Random(seed)
    wishes = [FOUR, TWO, {"mode": "mps", "shares": 100}, {"mode": "timeslice", "shares": 100}, None]
    with world() as node:
        now_s, alive = 0, []
        for _ in range(20):
            now_s += draw.choice([1, 30, 700])
            wish = draw.choice(wishes)
            match draw.choice(["converge", "converge", "kill", "crash", "join", "leave"]):
                case "converge":
                    node.converge(wish, after_s=now_s)
                case "kill":
                    point = f"{draw.choice(['before', 'after'])} {draw.choice([*Step, 'gone'])}"
                    killed_at(node, wish, point, after_s=now_s)
                case "crash" if node.daemon() is not None:
                    os.kill(node.daemon().pid, signal.SIGKILL)
                    until(lambda: node.daemon() is None)
                case "join" if node.ask("get_server_list") is not None:
                    client = node.client(Fraction(1, 100))
                    assert node.said(client)["percentage"] == 1
                    alive.append(client)
                case "leave" if alive:
                    node.leave(alive.pop())
                case _:
                    pass
            assert all(client.poll() is None for client in alive)
            # A daemon that is just starting is two processes until its parent has gone.
            until(lambda: len([one for one in node.ours() if one.control]) <= 1)
        while alive:
            node.leave(alive.pop())
        until(lambda: node.converge(None, after_s=now_s).done)
        is_as_found(node)


def test_the_times_between_starts_double_up_to_five_minutes():
    assert [backoff(attempts).seconds for attempts in (1, 2, 3, 4, 8, 9, 10, 10**9)] == [
        *(0, 2, 4, 8, 128, 256, 300, 300)
    ]
