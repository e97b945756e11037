"""Validators of any room run before a pool is written; what follows it is in its transaction."""

import asyncio

import pytest

from apportion.errors import ConflictError, InvalidInputError, InvalidStateError, UnavailableError
from apportion.pools import policy_rules, validators
from apportion.pools.policy import register_acceptance, register_attestor
from apportion.pools.schemas import PoolCreate, PoolUpdate, PoolValidate
from apportion.pools.service import (
    create_pool,
    get_pool,
    list_pools,
    register_follow_up,
    register_validator,
    update_pool,
    validate_pool,
)
from apportion.testing.builders import pool_of

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def own_registries(monkeypatch):
    """Let what a test registers go with it."""
    monkeypatch.setattr(validators, "_VALIDATORS", {**validators._VALIDATORS})
    monkeypatch.setattr(validators, "_FOLLOW_UPS", {**validators._FOLLOW_UPS})
    monkeypatch.setattr(policy_rules, "_ACCEPTANCE", {*policy_rules._ACCEPTANCE})
    monkeypatch.setattr(policy_rules, "_ATTESTORS", {*policy_rules._ATTESTORS})


async def widgets(connection, change):
    raise ValueError("widgets are out")


async def test_a_validator_that_fails_speaks_of_the_policy_in_its_own_words(world):
    pool = await world.pool(pool_of("H100"))
    register_validator("widgets", widgets)
    with pytest.raises(InvalidInputError) as refused:
        await create_pool(world.runtime, world.caller, pool_of("H100", name="other"))
    assert str(refused.value) == "policy: widgets are out"
    with pytest.raises(InvalidInputError, match="policy: widgets are out"):
        await change(world, pool, policy={"maxPending": "6h"})
    assert [each.name for each in await list_pools(world.runtime, world.caller)] == [pool.name]
    assert (await get_pool(world.runtime, world.caller, pool.id)).policy == {}


async def change(world, pool, **fields):
    request = PoolUpdate(version=pool.version, **fields)
    return await update_pool(world.runtime, world.caller, pool.id, request)


async def test_a_refusal_of_ours_stays_what_it_is_whether_raised_or_returned(world):
    async def raises(connection, change):
        raise InvalidStateError("not today", field="policy.colour", given=change.policy["colour"])

    async def returns(connection, change):
        return [ConflictError("nor tomorrow", field="policy.colour")]

    register_validator("a", raises)
    register_validator("b", returns)
    told = await validate_pool(
        world.runtime,
        world.caller,
        PoolValidate(create=pool_of("H100", colour="green", replicas=4)),
    )
    assert [(each.code, each.detail) for each in told.problems] == [
        (
            "INVALID_INPUT",
            (
                "policy.replicas: only timeslice and mps pools split a GPU by replicas, "
                "not exclusive ones"
            ),
        ),
        ("INVALID_STATE", "policy.colour: not today"),
        ("CONFLICT", "policy.colour: nor tomorrow"),
    ]
    assert (told.valid, told.unknown_fields) == (False, ["colour"])
    assert await list_pools(world.runtime, world.caller) == []


async def test_the_same_problem_is_told_once(world):
    async def again(connection, change):
        return [InvalidInputError("too red", field="policy.colour", given="red")]

    register_validator("a", again)
    register_validator("b", again)
    told = await validate_pool(world.runtime, world.caller, PoolValidate(create=pool_of("H100")))
    assert [each.detail for each in told.problems] == ["policy.colour: too red"]


async def test_trouble_with_the_database_is_no_fault_of_the_policy(world):
    async def slow(connection, change):
        await connection.execute("SET LOCAL statement_timeout = 10")
        await connection.execute("SELECT pg_sleep(5)")
        return []

    register_validator("slow", slow)
    with pytest.raises(UnavailableError):
        await create_pool(world.runtime, world.caller, pool_of("H100"))


async def test_a_validator_sees_what_is_replaced_and_what_would_be(world):
    seen = []

    async def look(connection, change):
        seen.append(change)
        return []

    register_validator("look", look)
    pool = await world.pool(pool_of("H100", "mig", maxPending="6h"))
    await change(world, pool, policy={"maxPending": "7h"})
    created, updated = seen
    assert (created.pool_id, created.before, created.policy) == (None, None, {"maxPending": "6h"})
    assert (updated.pool_id, updated.owner, updated.cls) == (pool.id, "root", "metal-host")
    assert (updated.sharing, updated.gpu_model) == ("mig", "H100")
    assert updated.policy == {"maxPending": "7h"}
    assert updated.before.policy == {"maxPending": "6h"}
    assert updated.before.now == world.clock()


async def test_a_follow_up_that_fails_undoes_the_change(world):
    pool = await world.pool(pool_of("H100"))

    async def refuse(connection, caller, change, now):
        raise InvalidStateError("somebody was faster", field="policy")

    register_follow_up("refuse", refuse)
    with pytest.raises(InvalidStateError, match="somebody was faster"):
        await change(world, pool, policy={"maxPending": "6h"})
    assert await get_pool(world.runtime, world.caller, pool.id) == pool
    events = await world.rows("SELECT type FROM events WHERE type = 'pool.updated'")
    assert events == []


async def test_other_rooms_add_checks_and_attestors(world):
    policy = {"acceptance": [{"kind": "diag.burn", "minutes": 5}], "joinAttestors": ["tpm"]}
    with pytest.raises(InvalidInputError, match=r"allowed: diag\.nvml"):
        await create_pool(world.runtime, world.caller, pool_of("H100", **policy))
    register_acceptance("diag.burn")
    register_attestor("tpm")
    pool = await create_pool(world.runtime, world.caller, pool_of("H100", **policy))
    assert pool.policy == policy


async def test_the_pool_of_the_document_is_created_as_it_stands_there(world):
    request = PoolCreate.model_validate(
        {
            "name": "fra1-h100",
            "class": "metal-host",
            "gpu_model": "H100",
            "sharing": "exclusive",
            "policy": {"acceptance": [{"kind": "diag.nvml"}], "maxPending": "6h"},
            "idempotency_key": "pool-fra1-h100",
        }
    )
    pool = await create_pool(world.runtime, world.caller, request)
    assert pool.policy == {"acceptance": [{"kind": "diag.nvml"}], "maxPending": "6h"}


async def test_a_policy_is_stored_as_given_unknown_fields_and_notation_included(world):
    policy = {"colour": {"a": [1, None, "x"]}, "overcommit": {"vcpu": "1.50"}, "endGrace": None}
    pool = await create_pool(world.runtime, world.caller, pool_of("H100", **policy))
    assert pool.policy == policy
    assert (await change(world, pool, policy={"colour": 1})).policy == {"colour": 1}


async def test_sixteen_changes_of_one_version_end_in_one_change(world):
    pool = await world.pool(pool_of("H100"))
    outcomes = await asyncio.gather(
        *(change(world, pool, policy={"maxPending": f"{n}h"}) for n in range(1, 17)),
        return_exceptions=True,
    )
    assert sum(isinstance(each, ConflictError) for each in outcomes) == 15
    [won] = [each for each in outcomes if not isinstance(each, Exception)]
    assert await get_pool(world.runtime, world.caller, pool.id) == won
