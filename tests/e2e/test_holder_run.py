"""A command runs on what was reserved for it, and leaves nothing behind, however it ends."""

import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from apportion.testing.builders import gpu, inventory

SEEN = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['NVIDIA_VISIBLE_DEVICES'])"
# Who runs these tests may have hung-up calls ignored, as nohup does, and children inherit that.
SLEEP = (
    "import signal, time; signal.signal(signal.SIGHUP, signal.SIG_DFL);"
    " print('began', flush=True); time.sleep({})"
)


class Node:
    """A machine that is the node of a pool."""

    def __init__(self, server, pool):
        self.server, self.pool, self.name = server, pool, f"{pool.name}-n"
        self.started: list[subprocess.Popen[str]] = []

    def run(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "apportion", "run", *words],
            env={**self.server.environment(), "APPORTION_NODE": self.name, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def close(self) -> None:
        for process in self.started:
            process.terminate()
            process.communicate(timeout=60)

    def reservations(self):
        with self.server.client() as client:
            found = list(client.list_reservations(limit=1000).all())
        return [each for each in found if self.pool.id in each.candidates]

    def states(self) -> list[tuple[str, str]]:
        return [(each.state, each.reason["code"]) for each in self.reservations()]


@pytest.fixture
def node(server):
    node = Node(server, server.pool("H100", "mig", ("3g.40gb@4", "1g.10gb@0")))
    yield node
    node.close()


def done(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    return process.returncode, out, err


def python(code: str) -> tuple[str, ...]:
    return ("--", sys.executable, "-c", code)


def test_it_sees_its_instance_alone_and_its_exit_code_comes_through(node):
    code = f"{SEEN}; import sys; sys.exit(7)"
    rc, out, err = done(node.run("--mig", "3g.40gb", "--for", "2h", *python(code)))
    assert rc == 7
    assert out.split() == [f"MIG-GPU-{node.name}-0-1"] * 2
    [view] = node.reservations()
    assert (view.state, view.reason["code"]) == ("ended", "released")
    assert view.name == Path(sys.executable).name
    assert f"{view.id} {view.name}: active in {node.pool.name} on {node.name}" in err


def test_its_own_flags_and_dashes_are_the_command_s(node):
    code = "import sys; print(sys.argv[1:])"
    words = ("--mig", "1g.10gb", "--for", "1h", *python(code), "--gpus", "--", "-x")
    rc, out, _ = done(node.run(*words))
    assert (rc, out.strip()) == (0, "['--gpus', '--', '-x']")


def test_it_waits_with_the_reason_and_runs_when_there_is_room(node):
    first = node.run("--mig", "3g.40gb", "--for", "1h", *python(SLEEP.format(60)))
    assert first.stdout.readline() == "began\n"
    second = node.run("--mig", "3g.40gb", "--for", "1h", *python("print('mine')"))
    assert ": pending, units_booked: " in second.stderr.readline()
    first.terminate()
    assert done(first)[0] == 143
    rc, out, _ = done(second)
    assert (rc, out) == (0, "mine\n")
    assert node.states() == [("ended", "released")] * 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_goes_to_the_command_and_the_reservation_is_given_back(node, number):
    process = node.run("--mig", "3g.40gb", "--for", "1h", *python(SLEEP.format(60)))
    assert process.stdout.readline() == "began\n"
    process.send_signal(number)
    rc, _, _ = done_without_trace(process)
    assert rc in (128 + number, 1)  # Python makes a KeyboardInterrupt of SIGINT
    assert node.states() == [("ended", "released")]


def done_without_trace(process):
    """As `done`; the command's own traceback of an interrupt is not ours."""
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_a_command_that_outlives_a_signal_goes_on_and_keeps_what_it_has(node):
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, lambda *_: print('heard', flush=True));"
        "print('began', flush=True); time.sleep(2); print('done')"
    )
    process = node.run("--mig", "3g.40gb", "--for", "1h", *python(code))
    assert process.stdout.readline() == "began\n"
    process.terminate()
    assert process.stdout.readline() == "heard\n"
    assert [state for state, _ in node.states()] == ["active"]
    rc, out, _ = done(process)
    assert (rc, out, node.states()) == (0, "done\n", [("ended", "released")])


def test_a_signal_while_it_waits_leaves_nothing_waiting(node):
    first = node.run("--mig", "3g.40gb", "--for", "1h", *python(SLEEP.format(60)))
    assert first.stdout.readline() == "began\n"
    second = node.run("--mig", "3g.40gb", "--for", "1h", *python("print('never')"))
    assert ": pending, " in second.stderr.readline()
    second.terminate()
    rc, out, _ = done(second)
    assert (rc, out) == (143, "")
    first.terminate()
    done(first)
    assert sorted(node.states()) == [("ended", "cancelled"), ("ended", "released")]


def test_it_is_kept_longer_while_it_runs_by_as_much_as_was_asked_for(node):
    rc, _, err = done(node.run("--mig", "3g.40gb", "--for", "4s", *python(SLEEP.format(6))))
    assert rc == 0
    assert "is kept until" in err
    [view] = node.reservations()
    assert view.reason["code"] == "released"
    lasted = (view.bookings[0].end - view.bookings[0].start).total_seconds()
    assert 6 <= lasted < 12


def test_where_others_have_the_time_it_is_told_to_end_when_its_own_is_up(node):
    process = node.run("--mig", "3g.40gb", "--for", "4s", *python(SLEEP.format(60)))
    assert process.stdout.readline() == "began\n"
    [view] = node.reservations()
    with node.server.client() as client:
        after = client.create_reservation(
            {
                "pool_id": node.pool.id,
                "start": view.end.isoformat(),
                "duration": "1h",
                "devices": [
                    {
                        "class": "gpu.mig",
                        "selector": {
                            "matchExpressions": [
                                {"key": "migProfile", "op": "In", "values": ["3g.40gb"]}
                            ]
                        },
                    }
                ],
            }
        )
    rc, _, err = done(process)
    assert rc == 143
    assert "cannot be kept beyond" in err
    assert "the command is told to end" in err
    with node.server.client() as client:
        assert client.get_reservation(after.id).state in ("placed", "active")
        client.release_reservation(after.id)


def test_what_somebody_else_ends_ends_the_command(node):
    process = node.run("--mig", "3g.40gb", "--for", "8s", *python(SLEEP.format(60)))
    assert process.stdout.readline() == "began\n"
    [view] = node.reservations()
    with node.server.client() as client:
        client.release_reservation(view.id)
    rc, _, err = done(process)
    assert rc == 143
    assert f"{view.id}: it is ended" in err


def test_elsewhere_nothing_is_reserved_and_the_way_there_is_said(node):
    words = ("--mig", "3g.40gb", "--for", "2h", *python("print('never')"))
    rc, out, err = done(node.run("--pool", node.pool.name, *words, APPORTION_NODE="laptop"))
    assert (rc, out) == (1, "")
    for part in ("this machine (laptop)", node.name, "apportion env", "APPORTION_NODE"):
        assert part in err
    rc, _, err = done(node.run(*words, APPORTION_NODE="laptop"))
    assert (rc, "is no node of any pool" in err) == (1, True)
    assert node.states() == []


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--vcpu", "1", "--for", "1h", "--", "true"), "no GPU is asked for"),
        (("--gpus", "1", "--gang", "2", "--for", "1h", "--", "true"), "--gang"),
        (("--gpus", "1", "--for", "1h", "--", "no-such-program"), "COMMAND"),
        (("--gpus", "1", "--for", "long", "--", "true"), "--for"),
        (("--gpus", "1", "--for", "1h"), "COMMAND"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_reserved(node, words, named):
    rc, _, err = done(node.run(*words))
    assert (rc, named in err, node.states()) == (2, True, [])


def test_what_is_no_program_after_all_gives_back(node, tmp_path):
    program = tmp_path / "empty"
    program.write_bytes(b"\x7fELF")
    program.chmod(0o755)
    rc, _, err = done(node.run("--mig", "3g.40gb", "--for", "1h", "--", str(program)))
    assert (rc, str(program) in err, node.states()) == (127, True, [("ended", "released")])


def test_a_shell_gets_the_same_environment(cli, server, node):
    words = ("reserve", "--pool", node.pool.name, "--mig", "3g.40gb", "--for", "1h", "-o", "json")
    held, waits = cli(*words).data, cli(*words).data
    said = cli("env", held["id"])
    assert said.code == 0
    code = shlex.quote(f"{SEEN}; print(os.environ['APPORTION_RESERVATION'])")
    shell = f"eval {shlex.quote(said.out)} && {sys.executable} -c {code}"
    seen = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True)
    uuid = f"MIG-GPU-{node.name}-0-1"
    assert seen.stdout.split() == [uuid, uuid, held["id"]]
    assert cli("env", held["id"], "-o", "json").data == {
        "NVIDIA_VISIBLE_DEVICES": uuid,
        "CUDA_VISIBLE_DEVICES": uuid,
        "APPORTION_RESERVATION": held["id"],
    }
    said = cli("env", waits["id"])
    assert (said.code, said.out, "apportion reservation wait" in said.err) == (1, "", True)
    cli("reservation", "release", held["id"], "--yes")
    cli("reservation", "release", waits["id"], "--yes")
    assert cli("env", waits["id"]).code == 1


def test_a_gang_s_environment_is_that_of_a_node(cli, server):
    pool = server.pool("H100", "exclusive", (), ())
    with server.client() as client:
        client.join_node(pool.id, inventory("other", gpu("H100", 0, node="other")))
    words = ("reserve", "--pool", pool.name, "--gpus", "1", "--gang", "2", "--gang-apart")
    view = cli(*words, "--for", "1h", "-o", "json").data
    assert len({each["node"] for each in view["bookings"]}) == 2
    said = cli("env", view["id"])
    assert (said.code, "--node" in said.err, "other" in said.err) == (2, True, True)
    said = cli("env", view["id"], "--node", "other", "-o", "json")
    assert said.data["CUDA_VISIBLE_DEVICES"] == "GPU-other-0"
    assert cli("env", view["id"], "--node", "nowhere").code == 1


def test_whole_gpus_of_one_node_are_seen_together(cli, server):
    pool = server.pool("H100", "exclusive", (), ())
    view = cli("reserve", "--pool", pool.name, "--gpus", "2", "--for", "1h", "-o", "json").data
    seen = cli("env", view["id"], "-o", "json").data["CUDA_VISIBLE_DEVICES"]
    assert sorted(seen.split(",")) == [f"GPU-{pool.name}-n-{at}" for at in range(2)]
