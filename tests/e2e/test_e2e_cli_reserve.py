"""Reserving from the command line: what is planned, placed, drawn, waits, and is given back."""

import os
import pty
import subprocess
import sys
import time

import pytest

MIXED = ("3g.40gb@4", "2g.20gb@0", "2g.20gb@2")


@pytest.fixture
def mig(server):
    return server.pool("H100", "mig", MIXED, ("7g.80gb@0",), ())


@pytest.fixture
def shares(server):
    return server.pool("T4", "timeslice", (), shares=100)


def test_a_profile_is_placed_and_shown_with_its_window_and_its_gpu(cli, mig):
    said = cli(
        *("reserve", "--pool", mig.name, "--mig", "mig-3g.40gb", "--for", "4h"),
        *("--vcpu", "8", "--host-memory-gib", "64", "--name", "ana"),
    )
    assert said.code == 0, said.err
    lines = said.out.splitlines()
    assert lines[0] == "plan: mig 3g.40gb (isolation: hardware) — 3/7 GPU"
    assert f": active in {mig.name} on {mig.name}-n" in said.out
    assert "asks for gpu.mig 3g.40gb; 8 vcpu and 64 GiB of host memory" in said.out
    assert "4h in all" in said.out
    assert "3g.40gb ana" in said.out
    assert "apportion reservation release res_" in said.out
    assert "3g.40gb ana" in cli("pool", "show", mig.id, "--draw").out


def test_a_fraction_takes_the_smallest_profile_and_says_what_it_wastes(cli, mig):
    said = cli("reserve", "--pool", mig.name, "--fraction", "0.2", "--for", "1h", "-o", "json")
    assert said.code == 0, said.err
    plan = said.data["plan"]
    assert (plan["mig_profile"], plan["requested"], plan["wasted"]) == ("2g.20gb", "1/5", "3/35")
    assert said.data["bookings"][0]["share"] == "2/7"


def test_memory_takes_a_profile_that_has_it(cli, mig):
    said = cli("reserve", "--pool", mig.name, "--memory", "20Gi", "--for", "1h", "-o", "json")
    assert said.data["plan"]["mig_profile"] == "3g.40gb"  # a 2g.20gb has 20,096 MiB


def test_what_no_profile_has_takes_a_whole_gpu_and_the_waste_is_stated(cli, server):
    pool = server.pool("H100", "mig", MIXED, ())
    said = cli("reserve", "--pool", pool.name, "--fraction", "0.5", "--for", "1h")
    assert said.code == 0, said.err
    assert "rounded 0.5 up to a whole GPU (50% wasted)" in said.out
    assert "⚠ 50% GPU capacity wasted by this fallback." in said.out


def test_a_named_profile_that_is_not_there_is_refused_unless_larger_will_do(cli, mig):
    words = ("reserve", "--pool", mig.name, "--mig", "1g.10gb", "--for", "1h")
    said = cli(*words)
    assert said.code == 1
    assert "1g.10gb is not on offer here (on offer: 2g.20gb, 3g.40gb, 7g.80gb)" in said.err
    larger = cli(*words, "--allow-larger", "-o", "json")
    assert larger.data["plan"]["mig_profile"] == "2g.20gb"


def test_isolation_is_never_lowered(cli, shares):
    words = ("reserve", "--pool", shares.name, "--fraction", "0.25", "--for", "1h", "-o", "json")
    assert cli(*words).data["bookings"][0]["share"] == "1/4"
    said = cli(*words, "--isolation", "exclusive")
    assert (said.code, said.data["plan"]["mechanism"]) == (1, "whole")
    assert said.data["state"] == "pending"


@pytest.mark.parametrize(("fraction", "units"), [("1/3", 34), ("0.81", 81), ("1/100", 1)])
def test_a_fraction_of_free_shares_is_rounded_up_to_a_hundredth(cli, server, fraction, units):
    pool = server.pool("T4", "mps", (), shares=100)
    said = cli("reserve", "--pool", pool.name, "--fraction", fraction, "--for=1h", "-o", "json")
    assert said.data["devices"] == [{"class": "gpu.share", "count": 1, "units": units}]


def test_a_fraction_of_fixed_slots_is_rounded_up_to_slots_of_one_gpu(cli, server):
    pool = server.pool("T4", "timeslice", (), (), replicas=4)
    said = cli("reserve", "--pool", pool.name, "--fraction", "0.3", "--for", "1h", "-o", "json")
    assert said.data["devices"] == [{"class": "gpu.slot", "count": 1, "units": 2}]
    assert (said.data["plan"]["wasted"], said.data["bookings"][0]["share"]) == ("1/5", "1/2")
    shown = cli("reservation", "show", said.data["id"])
    assert "asks for gpu.slot 2" in shown.out
    several = cli("reserve", "--pool", pool.name, "--slots=1", "--count=3", "--for=1h", "-o=json")
    assert len(several.data["bookings"]) == 3


def test_a_whole_gpu_of_a_pool_that_splits_them_is_all_of_its_units(cli, shares):
    said = cli("reserve", "--pool", shares.name, "--gpus", "1", "--for", "1h")
    assert said.code == 0, said.err
    assert "a whole one is all of its 100 shares" in said.out
    assert "{[0,101)}" in said.out  # its 100 shares and one seat


def test_a_part_of_a_pool_of_whole_gpus_is_a_whole_one(cli, server):
    pool = server.pool("T4", "exclusive", (), ())
    said = cli("reserve", "--pool", pool.name, "--fraction", "0.25", "--count=2", "--for", "1h")
    assert said.code == 0, said.err
    assert "2 pieces, each: whole (isolation: exclusive) — 1.00 GPU" in said.out
    assert "75% GPU capacity wasted" in said.out


def test_what_has_no_room_waits_and_says_why_and_what_would_help(cli, server):
    pool = server.pool("T4", "exclusive", ())
    first = cli("reserve", "--pool", pool.name, "--gpus", "1", "--for", "1h", "-o", "json")
    waiting = cli("reserve", "--pool", pool.name, "--gpus", "1", "--for", "1h", "--name", "next")
    assert waiting.code == 1
    assert "next: pending" in waiting.out
    assert "units_booked" in waiting.out
    assert "what would help: " in waiting.out
    shown = cli("reservation", "list", "--state", "pending", "--name", "next").out
    assert "units_booked since 20" in shown
    listed = cli("reservation", "list", "--state", "pending", "--name", "next", "-o", "json").data
    assert cli("reservation", "release", first.data["id"], "--yes").code == 0
    # The clock's loop places who waits, beside the one who released.
    deadline = time.monotonic() + 20
    while cli("reservation", "show", listed["items"][0]["id"], "-o", "json").data["state"] != (
        "active"
    ):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_of_several_pools_it_names_the_one_that_it_got(cli, server):
    small, large = (server.pool("T4", "timeslice", (), shares=100) for _ in range(2))
    for _ in range(2):
        words = ("--pool", f"{small.name},{large.id}", "--fraction", "1/2", "--for", "1h")
        said = cli("reserve", *words, "-o", "json")
        assert said.data["pool_id"] in {small.id, large.id}
    both = cli("reservation", "list", "--pool", small.name, "-o", "json").data["items"]
    assert len(both) == 2  # the tightest fit: the second half of the GPU that the first one opened


def test_pools_that_would_meet_an_ask_in_different_ways_are_not_mixed(cli, server, shares):
    slots = server.pool("T4", "timeslice", (), replicas=4)
    said = cli("reserve", "--pool", f"{shares.name},{slots.name}", "--fraction", "0.5", "--for=1h")
    assert said.code == 2
    assert f"{shares.name}: gpu.share, 50 units; {slots.name}: gpu.slot, 2 units" in said.err


def test_a_selector_narrows_where(cli, server):
    pool = server.pool("T4", "exclusive", (), (), (), ())
    words = ("reserve", "--pool", pool.name, "--gpus", "2", "--for", "1h", "-o", "json")
    said = cli(*words, "--select", "numaNode=1, gpuModel in (t4)")
    assert {each["gpu_id"][-1] for each in said.data["bookings"]} == {"1", "3"}


def test_host_resources_alone_are_reserved(cli, mig):
    said = cli("reserve", "--pool", mig.name, "--vcpu", "0.5", "--for", "30m")
    assert said.code == 0, said.err
    assert "asks for 0.5 vcpu" in said.out
    assert f"in {mig.name}" in said.out


def test_a_window_in_the_users_zone_is_shown_in_both(server, mig):
    said = subprocess.run(
        [
            *(sys.executable, "-m", "apportion", "reserve", "--pool", mig.name),
            *("--mig", "7g.80gb", "--from", "2036-12-01T09:00", "--until", "2036-12-01 17:00"),
        ],
        env={**server.environment(), "TZ": "America/New_York"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    assert "from  2036-12-01T14:00:00Z (2036-12-01 09:00:00 EST)" in said.stdout
    assert "until 2036-12-01T22:00:00Z (2036-12-01 17:00:00 EST)" in said.stdout
    assert ": placed in" in said.stdout


def test_the_same_key_reserves_once(cli, mig):
    words = ("reserve", "--pool", mig.name, "--mig", "7g.80gb", "--for", "1h", "--key", mig.name)
    first, again = cli(*words, "-o", "json"), cli(*words, "-o", "json")
    assert first.data["id"] == again.data["id"]
    other = cli(*words[:-4], "--for", "2h", "--key", mig.name)
    assert (other.code, "--key: this key was used for another ask" in other.err) == (1, True)


def test_capabilities_of_a_pool_plan_without_reserving(cli, mig, shares):
    said = cli("plan", "x", "--fraction", "0.2", "--pool", mig.name, "-o", "json")
    assert said.data["mig_profile"] == "2g.20gb"
    said = cli("plan", "x", "--fraction", "0.2", "--pool", shares.id, "-o", "json")
    assert (said.data["mechanism"], said.data["slots"]) == ("timeslice", 20)


def test_releasing_asks_a_person_and_refuses_where_there_is_none(server, cli, mig):
    made = cli("reserve", "--pool", mig.name, "--mig", "7g.80gb", "--for", "1h", "-o", "json").data
    nobody = cli("reservation", "release", made["id"])
    assert (nobody.code, "--yes: nobody can be asked" in nobody.err) == (2, True)
    assert answered(server, made["id"], "n\n") == 1
    assert cli("reservation", "show", made["id"], "-o", "json").data["state"] == "active"
    assert answered(server, made["id"], "y\n") == 0
    assert cli("reservation", "show", made["id"], "-o", "json").data["state"] == "ended"
    again = cli("reservation", "release", made["id"], "--yes")
    assert (again.code, "released" in again.out) == (0, True)


def answered(server, reservation_id: str, answer: str) -> int:
    """Release on a terminal, and answer its question."""
    terminal, end = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "apportion", "reservation", "release", reservation_id],
        stdin=end,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=server.environment(),
    )
    os.write(terminal, answer.encode())
    code = process.wait(timeout=30)
    os.close(terminal)
    os.close(end)
    return code


def test_a_reader_that_leaves_halfway_ends_the_command_without_a_traceback(server):
    server.pool("T4", "exclusive")
    process = subprocess.Popen(
        [sys.executable, "-m", "apportion", "event", "list", "--follow"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=server.environment(),
    )
    process.stdout.readline()
    process.stdout.close()
    deadline = time.monotonic() + 20
    while process.poll() is None and time.monotonic() < deadline:
        server.pool("T4", "exclusive")  # one more event, and nobody who reads it
        time.sleep(0.2)
    assert process.wait(timeout=1) == 141
    assert process.stderr.read() == ""
    process.stderr.close()
