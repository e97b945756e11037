"""Who does not leave a GPU keeps it, on a machine with its agent; the next one begins after that.

Real processes but for the one that does not leave, which the simulated driver lists.
"""

import os
import subprocess
import sys
from datetime import timedelta

import pytest
from simulated_world import simulated

pytestmark = pytest.mark.timeout(300)
NOBODY = 4_194_304 + 7  # no kernel gives this pid to anybody


@pytest.fixture
def world(open_path):
    with simulated(open_path) as world:
        yield world


def whole(world, count=1, **window):
    body = {"pool_id": world.pool_id, "devices": [{"class": "gpu", "count": count}], **window}
    return world.client.create_reservation(body)


def cli(world, *words):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("APPORTION_")}
    told = {"APPORTION_URL": world.server.url, "APPORTION_TOKEN_FILE": world.server.token_file}
    done = subprocess.run(
        [sys.executable, "-m", "apportion", *words],
        env={**clean, **{name: str(value) for name, value in told.items()}},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_the_next_one_is_put_off_told_why_and_begins_when_the_other_has_left(world):
    others = whole(world, 7, duration="10m")
    held = whole(world, duration="20s")
    after = whole(world, start=held.end.isoformat(), duration="2m")
    assert after.bookings[0].gpu_id == held.bookings[0].gpu_id
    world.until(lambda: world.allocation(held.id) == "ready")
    gpus = {each.id: each.index for each in world.client.list_gpus(limit=100).items}
    world.node.machine.hold(gpus[held.bookings[0].gpu_id], NOBODY)
    reason = world.until(
        lambda: (
            found
            if (found := world.client.get_reservation(after.id).reason)["code"]
            == "blocked_by_overrun"
            else None
        )
    )
    assert reason["held_by"] == held.id
    assert (reason["on"], reason["gpu_id"]) == (world.node.name, held.bookings[0].gpu_id)
    view = world.client.get_reservation(after.id)
    assert (view.state, view.delayed_from, view.end) == ("placed", after.start, after.end)
    assert view.start > after.start
    for verb in ("show", "explain"):
        said = cli(world, "reservation", verb, after.id)
        assert "blocked_by_overrun: whoever had it before has not let go of it" in said
        assert "it was to begin " in said
        assert "its place is kept for it, and not free before " in said
        assert "what would help: it begins by itself" in said
    assert world.client.get_reservation(held.id).state == "ending"
    world.node.machine.leave(NOBODY)
    world.until(lambda: world.client.get_reservation(after.id).state == "active")
    world.until(lambda: world.client.get_reservation(held.id).state == "ended")
    view = world.client.get_reservation(after.id)
    assert held.end < view.start < after.start + timedelta(minutes=1)
    assert view.end == after.end
    [piece] = view.bookings
    [before] = world.client.get_reservation(held.id).bookings
    assert piece.gpu_id == before.gpu_id
    # One after the other, by the machine's own clock, and what it has is billed from its start.
    assert before.allocation.released.at <= piece.allocation.bound.at
    assert (piece.start, piece.end) == (view.start, after.end)
    told = [each.type for each in world.client.list_events(subject=after.id).items]
    assert told.count("reservation.delayed") == told.count("reservation.moved") == 1
    for each in (others, after):
        world.client.release_reservation(each.id)
