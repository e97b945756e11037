"""Whatever statement a connection dies at, a series is there with all its windows or not at all."""

import pytest
from test_services_crash import Killer, rows_of

from apportion.reservations.window_schemas import SeriesCreate
from apportion.testing.builders import device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def killer(monkeypatch):
    return Killer(monkeypatch)


@pytest.fixture
async def pool(world):
    return await world.pool(pool_of("H100"), inventory("n1", gpu("H100", 0)))


def series(pool, key="once"):
    hours = {"start": "09:00", "end": "17:00", "zone": "UTC"}
    return SeriesCreate.model_validate(
        {
            "pool_id": pool.id,
            "devices": [device().model_dump(by_alias=True)],
            "resources": {"vcpu": 2},
            "recurrence": {"days": ["mon", "tue", "wed"], **hours, "count": 3},
            "idempotency_key": key,
        }
    )


async def all_rows(world):
    return await rows_of(world), await world.rows("SELECT * FROM series ORDER BY id")


async def test_a_series_whose_making_dies_leaves_nothing(world, killer, pool):
    before = await all_rows(world)

    async def check():
        assert await all_rows(world) == before
        assert await world.drift() == {}

    died, series_id = await killer.at_each_statement(
        lambda: world.reservations.series.create(world.caller, series(pool)), check
    )
    assert died > 8
    view, _ = await world.reservations.series.get(world.caller, series_id)
    assert view.states == {"active": 1, "placed": 2}
    assert await world.used(pool) == {"gpu": 1, "vcpu": 2}
    assert await world.reservations.series.create(world.caller, series(pool)) == series_id


async def test_a_release_that_dies_leaves_all_windows_as_they_were(world, killer, pool):
    series_id = await world.reservations.series.create(world.caller, series(pool))
    world.clock.advance(hours=30)
    await world.reservations.lifecycle.advance()
    before = await all_rows(world)

    async def check():
        assert await all_rows(world) == before
        assert await world.findings() == []

    died, done = await killer.at_each_statement(
        lambda: world.reservations.series.release(world.caller, series_id), check
    )
    assert (died > 6, done) == (True, True)
    view, _ = await world.reservations.series.get(world.caller, series_id)
    assert view.states == {"ended": 3}
    assert await world.used(pool) == {}


async def test_an_end_that_dies_hands_the_charge_over_once(world, killer, pool):
    await world.reservations.series.create(world.caller, series(pool))
    world.clock.advance(hours=8)
    stands = [await all_rows(world)]

    async def check():
        # It has not ended, or it has: what is looked for after that changes nothing here.
        found = await all_rows(world)
        if found != stands[-1]:
            stands.append(found)
        assert len(stands) <= 2
        assert await world.findings() == []

    died, _ = await killer.at_each_statement(world.reservations.lifecycle.end_due, check)
    assert (died > 4, len(stands)) == (True, 2)
    assert await world.used(pool) == {"gpu": 1, "vcpu": 2}
    charged = await world.rows("SELECT state, charges FROM reservations ORDER BY id")
    assert [row["state"] for row in charged] == ["ended", "placed", "placed"]
    assert charged[1]["charges"]["gpu"] == "1"
