"""An ask is checked against its pools first, in words that name the part that is wrong."""

import pytest

from apportion.errors import InvalidInputError, NotFoundError
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio

POOLS = {
    "mig": pool_of("H100", "mig"),
    "exclusive": pool_of("H100", "exclusive"),
    "timeslice": pool_of("T4", "timeslice", replicas=4),
    "mps": pool_of("T4", "mps", replicas=4),
    "shares": pool_of("T4", "mps", name="t4-shares", shares=100),
}


async def refusal_of(world, sharing: str, *devices, **request) -> InvalidInputError:
    pool = await world.pool(POOLS[sharing])
    with pytest.raises(InvalidInputError) as caught:
        await world.create(ask(pool.id, *devices, **request))
    assert await world.rows("SELECT id FROM reservations") == []
    return caught.value


@pytest.mark.parametrize(
    ("sharing", "devices", "words"),
    [
        (
            "timeslice",
            [device("gpu.mig")],
            "devices[0]: gpu.mig atoms exist only in mig pools",
        ),
        (
            "exclusive",
            [device(), device("gpu.mig")],
            "devices[1]: gpu.mig atoms exist only in mig pools",
        ),
        (
            "mig",
            [device("gpu.slot")],
            "devices[0]: gpu.slot atoms exist only in timeslice or mps pools",
        ),
        (
            "timeslice",
            [device("gpu.slot", sharing="mps")],
            "devices[0]: the pool shares GPUs as timeslice, not mps",
        ),
        (
            "mig",
            [device("gpu.mig"), device("gpu.mig", sharing="timeslice")],
            "devices[1]: the pool shares GPUs as mig, not timeslice",
        ),
        (
            "shares",
            [device("gpu.slot")],
            "devices[0]: the pool has free shares, not slots; ask for gpu.share",
        ),
        (
            "mps",
            [device("gpu.share", units=81)],
            "devices[0]: gpu.share atoms exist only in pools whose policy sets shares",
        ),
    ],
)
async def test_a_class_that_the_mode_does_not_have_is_refused_in_the_documents_words(
    world, sharing, devices, words
):
    assert str(await refusal_of(world, sharing, *devices)) == words


@pytest.mark.parametrize("sharing", ["exclusive", "mps"])
async def test_a_requests_own_sharing_may_be_exclusive_or_the_pools(world, sharing: str):
    pool = await world.pool(POOLS["mps"], inventory("n1", gpu("T4", 0)))
    view = await world.create(ask(pool.id, device("gpu.slot", sharing=sharing)))
    assert view.state == "active"


async def test_more_slots_than_a_gpu_has_are_refused_with_their_number(world):
    error = await refusal_of(world, "mps", device("gpu.slot", units=5))
    assert (error.field, error.given) == ("devices[0].units", 5)
    assert "has 4 slots" in str(error)


async def test_a_whole_piece_cannot_be_asked_for_in_units(world):
    error = await refusal_of(world, "mig", device("gpu.mig", units=2))
    assert (error.field, error.given, error.allowed) == ("devices[0].units", 2, "1")


async def test_nothing_is_no_reservation(world):
    assert (await refusal_of(world, "exclusive")).field == "devices"


@pytest.mark.parametrize(
    ("condition", "field"),
    [
        (("gpuColour", "In", ["red"]), "key"),
        (("gpuModel", "Is", ["H100"]), "op"),
        (("gpuModel", "In", []), "values"),
        (("gpuModel", "Exists", ["x"]), "values"),
        (("vramGiB", "Gt", ["much"]), "values"),
        (("vramGiB", "Lt", ["1", "2"]), "values"),
        (("migProfile", "In", ["3g40gb"]), "values"),
        (("slot", "In", ["0"]), "key"),
    ],
)
async def test_a_bad_selector_names_the_part_that_is_bad(world, condition, field: str):
    error = await refusal_of(world, "mig", device("gpu.mig"), device("gpu.mig", where=[condition]))
    assert error.field == f"devices[1].selector.matchExpressions[0].{field}"


@pytest.mark.parametrize(
    ("window", "field"),
    [
        ({"duration": "1h", "end": "2026-03-02T12:00:00Z"}, "duration"),
        ({"duration": "soon"}, "duration"),
        ({"duration": "0s"}, "duration"),
        ({"start": "2026-03-02T08:59:59.999999Z"}, "start"),
        ({"start": "2026-03-02T10:00:00"}, "start"),
        ({"start": "2026-03-02T10:00:00Z", "end": "2026-03-02T10:00:00Z"}, "end"),
        ({"start": "2026-03-02T10:00:00Z", "end": "2026-03-02T09:30:00Z"}, "end"),
        ({"end": "2026-03-02T12:00:00Z"}, "start"),
        ({"start": "9999-12-31T23:00:00Z", "duration": "2h"}, "duration"),
    ],
)
async def test_a_bad_window_names_its_part(world, window, field: str):
    assert (await refusal_of(world, "exclusive", device(), **window)).field == field


@pytest.mark.parametrize(
    ("amounts", "field"),
    [
        ({"vcpu": "-1"}, "resources.vcpu"),
        ({"vcpu": "0.0001"}, "resources.vcpu"),
        ({"vcpu": "many"}, "resources.vcpu"),
        ({"memory_gib": "1e99"}, "resources.memoryGiB"),
        ({"memory_gib": "NaN"}, "resources.memoryGiB"),
    ],
)
async def test_a_bad_amount_names_its_field(world, amounts, field: str):
    assert (await refusal_of(world, "exclusive", device(), **amounts)).field == field


async def test_a_pool_of_somebody_else_or_of_nobody_is_not_found(world):
    with pytest.raises(NotFoundError, match="no such pool") as caught:
        await world.create(ask("pool_none", device()))
    assert caught.value.given == "pool_none"


async def test_every_candidate_must_be_able_to_serve_the_ask(world):
    mig = await world.pool(POOLS["mig"])
    other = await world.pool(POOLS["exclusive"])
    with pytest.raises(InvalidInputError, match="only in mig pools"):
        await world.create(ask([mig.id, other.id], device("gpu.mig")))


@pytest.mark.parametrize("pools", [[], ["pool_1", "pool_1"]])
async def test_candidates_are_some_and_each_named_once(world, pools):
    with pytest.raises(InvalidInputError) as caught:
        await world.create(ask(pools, device()))
    assert caught.value.field == "pool_ids"
