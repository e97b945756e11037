"""When an ask could start, where, and until when; nothing is held by asking."""

from datetime import timedelta

import pytest

from apportion.errors import InvalidInputError, NotFoundError
from apportion.reservations.window_schemas import FreeWindowsAsk
from apportion.testing.builders import MONDAY, ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio
HOUR = timedelta(hours=1)


def at(hours):
    return MONDAY + hours * HOUR


@pytest.fixture
async def pool(world):
    return await world.pool(pool_of("H100"), inventory("n1", gpu("H100", 0)))


async def earliest(world, request, caller=None):
    outlook = await world.reservations.find_earliest(caller or world.caller, request)
    return outlook.pools


async def free_windows(world, request, k=5):
    request = FreeWindowsAsk.model_validate(
        {**request.model_dump(by_alias=True, exclude={"idempotency_key"}), "k": k}
    )
    return await world.reservations.find_free_windows(world.caller, request)


async def test_it_says_when_and_where_and_until_when(world, pool):
    await world.create(ask(pool.id, device(), duration="3h"))
    await world.create(ask(pool.id, device(), start=at(6), duration="1h"))
    [found] = await earliest(world, ask(pool.id, device(), duration="2h"))
    window = found.window
    assert (window.start, window.end, window.until) == (at(3), at(5), at(6))
    assert (window.nodes, [each.gpu_id for each in window.gpus]) == (["n1"], ["GPU-n1-0"])
    assert window.gpus[0].free_from == at(7)
    assert (found.reason, found.quota) == (None, None)
    [found] = await earliest(world, ask(pool.id, device(), duration="4h"))
    assert (found.window.start, found.window.until) == (at(7), None)


async def test_what_it_says_comes_true(world, pool):
    await world.create(ask(pool.id, device(), duration="3h"))
    [found] = await earliest(world, ask(pool.id, device(), duration="2h"))
    view = await world.create(ask(pool.id, device(), start=found.window.start, duration="2h"))
    assert (view.state, view.bookings[0].gpu_id) == ("placed", found.window.gpus[0].gpu_id)


async def test_nothing_is_held_and_nothing_is_written(world, pool):
    events = len(await world.rows("SELECT id FROM events"))
    for _ in range(2):
        [found] = await earliest(world, ask(pool.id, device(), duration="2h"))
        assert found.window.start == MONDAY
    await free_windows(world, ask(pool.id, device(), duration="2h"))
    assert await world.rows("SELECT id FROM reservations") == []
    assert len(await world.rows("SELECT id FROM events")) == events
    assert await world.used(pool) == {}


async def test_where_it_never_could_the_reason_says_so(world, pool):
    other = await world.pool(pool_of("H100", "mig", name="other"))
    found = await earliest(world, ask([other.id, pool.id], device(count=2), duration="2h"))
    assert [(each.window, each.reason["code"]) for each in found] == [
        (None, "pool_empty"),
        (None, "larger_than_any_node"),
    ]
    assert found[1].reason["nodes"] == sum(each["count"] for each in found[1].reason["reasons"])


async def test_the_pool_that_could_first_comes_first(world, pool):
    other = await world.pool(
        pool_of("H100", name="other"), inventory("n2", gpu("H100", 0, node="n2"))
    )
    await world.create(ask(pool.id, device(), duration="3h"))
    await world.create(ask(other.id, device(), duration="1h"))
    found = await earliest(world, ask([pool.id, other.id], device(), duration="2h"))
    assert [(each.pool_id, each.window.start) for each in found] == [
        (other.id, at(1)),
        (pool.id, at(3)),
    ]
    windows = await free_windows(world, ask([pool.id, other.id], device(), duration="2h"))
    assert [(each.pool_id, each.start) for each in windows.windows] == [
        (other.id, at(1)),
        (pool.id, at(3)),
    ]


async def test_the_next_starts_come_in_order_and_no_more_than_asked_for(world, pool):
    for start in (1, 4, 7):
        await world.create(ask(pool.id, device(), start=at(start), duration="1h"))
    request = ask(pool.id, device(), duration="90m")
    found = await free_windows(world, request)
    assert [(each.start, each.until) for each in found.windows] == [
        (at(2), at(4)),
        (at(5), at(7)),
        (at(8), None),
    ]
    assert len((await free_windows(world, request, k=2)).windows) == 2
    # A later start asked for, and an end to be over by, bound them.
    request = ask(pool.id, device(), duration="90m", start=at(3), end_before=at(7).isoformat())
    assert [each.start for each in (await free_windows(world, request)).windows] == [at(5)]


async def test_the_gap_is_between_and_the_lead_before(world):
    window = {"gap": "30m", "lead": "1h"}
    pool = await world.pool(pool_of("H100", window=window), inventory("n1", gpu("H100", 0)))
    [found] = await earliest(world, ask(pool.id, device(), duration="1h"))
    assert found.window.start == at(1)
    await world.create(ask(pool.id, device(), start=at(1), duration="1h"))
    await world.create(ask(pool.id, device(), start=at(5), duration="1h"))
    [found] = await earliest(world, ask(pool.id, device(), duration="1h"))
    assert (found.window.start, found.window.until) == (at(2.5), at(4.5))


async def test_a_quota_that_would_refuse_it_is_told(world, pool):
    await world.quota(pool, "gpu", 1)
    [found] = await earliest(world, ask(pool.id, device(), duration="2h"))
    assert found.quota is None
    await world.create(ask(pool.id, device(), duration="3h"))
    [found] = await earliest(world, ask(pool.id, device(), duration="2h"))
    assert found.window.start == at(3)
    short = found.quota
    assert (short.tenant_id, short.resource, short.asked, short.left) == ("root", "gpu", 1, 0)


async def test_who_may_not_reserve_there_is_told_nothing(world, pool):
    stranger = await world.tenant("acme")
    with pytest.raises(NotFoundError) as caught:
        await earliest(world, ask(pool.id, device()), stranger)
    assert (caught.value.message, caught.value.given) == ("no such pool", pool.id)


async def test_it_is_refused_as_creating_it_would_be(world):
    pool = await world.pool(
        pool_of("H100", window={"maximum": "1h"}), inventory("n1", gpu("H100", 0))
    )
    with pytest.raises(InvalidInputError, match="no window of this length"):
        await earliest(world, ask(pool.id, device(), duration="2h"))
    with pytest.raises(InvalidInputError, match="atoms exist only in mig pools"):
        await earliest(world, ask(pool.id, device("gpu.mig"), duration="1h"))
    with pytest.raises(InvalidInputError, match="give either pool_id"):
        await earliest(world, ask(pool.id, device(), pool_ids=[pool.id]))


async def test_a_gang_is_told_of_whole(world, pool):
    await world.report(pool, inventory("n2", gpu("H100", 0, node="n2")))
    await world.create(ask(pool.id, device(), duration="3h"))
    request = ask(pool.id, device(), duration="2h", gang={"members": 2, "apart": True})
    [found] = await earliest(world, request)
    assert (found.window.start, sorted(found.window.nodes)) == (at(3), ["n1", "n2"])
    assert len({each.gpu_id for each in found.window.gpus}) == 2
    request = ask(pool.id, device(), duration="2h", gang={"members": 3})
    [found] = await earliest(world, request)
    assert found.window is None
    assert found.reason["code"]
