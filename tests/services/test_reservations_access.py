"""Access policies see an ask's GPUs, its pieces of GPUs and its length, in every candidate pool."""

from dataclasses import replace
from datetime import timedelta

import pytest
from pools_acting import offer

from apportion.authority.engine import Policy
from apportion.authority.service import Authority
from apportion.errors import ForbiddenError, NotFoundError
from apportion.testing.builders import MONDAY, ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio
CREATE = "compute:reservations:create"


def forbids(condition):
    return f'forbid(principal, action == Action::"{CREATE}", resource) when {{ {condition} }};'


def under(caller, *texts, role="member"):
    """Give a caller with a token whose tenant has these policies."""
    policies = tuple(
        Policy(f"pol_{at}", caller.tenant_id, f"rule-{at}", text) for at, text in enumerate(texts)
    )
    authority = Authority(
        token_id=caller.actor,
        role=role,
        home=caller.tenant_id,
        actions=("*",),
        expires_at=None,
        policies=policies,
    )
    return replace(caller, authority=authority)


@pytest.fixture
async def pool(world, acme):
    gpus = [gpu("H100", 0, *(f"1g.10gb@{at}" for at in range(7))), gpu("H100", 1), gpu("H100", 2)]
    pool = await world.pool(pool_of("H100", "mig"), inventory("n1", *gpus))
    await offer(world, pool, acme, {"gpu": 8, "gpu.mig": 14})
    return pool


async def reserve(world, caller, request):
    return (await world.reservations.create(caller, request)).state


async def refusal(world, caller, request):
    with pytest.raises(ForbiddenError) as caught:
        await world.reservations.create(caller, request)
    assert await world.rows("SELECT FROM reservations WHERE caller = %s", caller.actor) == []
    return caught.value


async def test_a_limit_on_whole_gpus_does_not_count_slices(world, pool, acme):
    caller = under(acme, forbids("context.gpuCount > 1"))
    error = await refusal(world, caller, ask(pool.id, device(count=2)))
    assert error.message == (
        f"pool {pool.name}: needs the right {CREATE}, and it is forbidden by rule-0"
    )
    assert (error.field, error.given) == ("pool_id", pool.id)
    assert error.details == {"right": CREATE, "policies": ["pol_0"], "pool_id": pool.id}
    assert await reserve(world, caller, ask(pool.id, device(), device("gpu.mig", 7))) == "active"


@pytest.mark.parametrize(
    ("pool", "devices", "counts"),
    [
        (
            pool_of("H100", "mig"),
            [device("gpu.mig", 2), device("gpu.mig"), device("gpu", 2)],
            (2, 3),
        ),
        (
            pool_of("H100", "timeslice", replicas=8),
            [device("gpu.slot", 2, 3), device("gpu.slot")],
            (0, 7),
        ),
        (
            pool_of("H100", "mps", shares=100),
            [device("gpu.share", 2, 50), device("gpu.share", 1, 1)],
            (0, 3),
        ),
        (pool_of("H100"), [], (0, 0)),
    ],
)
async def test_each_fraction_counts_as_a_slice_and_only_whole_gpus_as_gpus(
    world, pool, devices, counts
):
    whole, slices = counts
    pool = await world.pool(pool)
    request = ask(pool.id, *devices, vcpu=1)
    exactly = under(
        world.caller, forbids(f"context.gpuCount == {whole} && context.gpuSlices == {slices}")
    )
    await refusal(world, replace(exactly, ancestors=("root",)), request)
    otherwise = under(
        world.caller, forbids(f"context.gpuCount != {whole} || context.gpuSlices != {slices}")
    )
    assert await reserve(world, replace(otherwise, ancestors=("root",)), request) == "pending"


@pytest.mark.parametrize(
    "window",
    [
        {"duration": "2h"},
        {"start": MONDAY + timedelta(hours=5), "duration": "2h"},
        {"start": MONDAY + timedelta(hours=5), "end": MONDAY + timedelta(hours=7)},
        {
            "start": MONDAY,
            "end": MONDAY + timedelta(hours=1, minutes=59, seconds=59, microseconds=1),
        },
    ],
)
async def test_the_length_is_in_seconds_and_a_begun_one_counts(world, pool, acme, window):
    request = ask(pool.id, device(), **window)
    await refusal(world, under(acme, forbids("context.durationSeconds >= 7200")), request)
    longer = under(acme, forbids("context.durationSeconds > 7200"))
    assert await reserve(world, longer, request) in ("active", "placed")


async def test_a_policy_sees_the_pool_and_whether_it_is_the_tenants_own(world, pool, acme):
    request = ask(pool.id, device())
    for condition in (
        "!context.owned",
        'context.gpuModel == "H100"',
        'context.class == "metal-host"',
        'context.sharing == "mig"',
        f'context.region == "{pool.region}"',
        'resource in Tenant::"root"',
        f'resource == Pool::"{pool.id}"',
    ):
        await refusal(world, under(acme, forbids(condition)), request)
    assert await reserve(world, under(acme, forbids("context.owned")), request) == "active"


async def test_every_candidate_has_to_be_allowed_and_the_one_that_is_not_is_named(
    world, pool, acme
):
    free = await world.pool(pool_of("A100", name="free"))
    await offer(world, free, acme, {"gpu": 8})
    caller = under(acme, forbids('context.gpuModel == "H100"'))
    error = await refusal(world, caller, ask([free.id, pool.id], device()))
    assert error.given == pool.id
    assert await reserve(world, caller, ask(free.id, device())) == "pending"


async def test_each_ask_of_a_batch_is_decided_by_itself(world, pool, acme):
    caller = under(acme, forbids("context.gpuCount > 1"))
    asks = [ask(pool.id, device(count=n)) for n in (1, 2, 1, 2)]
    outcomes = await world.reservations.create_many(caller, asks)
    assert [type(each) for each in outcomes] == [str, ForbiddenError, str, ForbiddenError]
    views = await world.reservations.get_many(acme, [outcomes[0], outcomes[2]])
    assert {view.state for view in views.values()} == {"active"}


async def test_a_pool_that_is_not_there_is_not_found_before_it_is_forbidden(world, pool):
    stranger = under(await world.tenant("beta"), forbids("true"))
    with pytest.raises(NotFoundError):
        await world.reservations.create(stranger, ask(pool.id, device()))


async def test_what_is_there_already_is_the_answer_to_a_retry_that_is_forbidden_by_now(
    world, pool, acme
):
    request = ask(pool.id, device(), key="once")
    first = await world.reservations.create(under(acme), request)
    again = await world.reservations.create(under(acme, forbids("true")), request)
    assert again.id == first.id
    with pytest.raises(ForbiddenError):
        await world.reservations.create(
            under(acme, forbids("true")), ask(pool.id, device(), key="twice")
        )
