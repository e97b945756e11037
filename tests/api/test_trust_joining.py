"""Machines join by themselves, once a token, with a key that is theirs; both sides are proven."""

import asyncio

import pytest
from trust_machine import Line, Machine, refusal_of

from apportion.errors import (
    ConflictError,
    ForbiddenError,
    InvalidInputError,
    InvalidStateError,
    UnauthenticatedError,
)
from apportion.nodes.attesting import JoinTokens, Voucher, add_attestor
from apportion.store.connections import transaction
from apportion.testing.builders import gpu, inventory, pool_of

pytestmark = [pytest.mark.anyio, pytest.mark.oldest]


@pytest.fixture
def line(http):
    return Line(http)


@pytest.fixture
async def pool(with_client):
    return await with_client(lambda client: client.create_pool(pool_of("H100", name="p")))


@pytest.fixture
def token(with_client, pool):
    """Make join tokens of the pool."""

    async def make(pool_id=pool.id, **body):
        request = {"name": "m", **body}
        return await with_client(lambda client: client.create_join_token(pool_id, request))

    return make


async def rows(runtime, query):
    async with transaction(runtime.db) as connection:
        return await (await connection.execute(query)).fetchall()


async def test_a_machine_joins_and_is_known_by_its_key(line, token, with_client, pool):
    machine, issued = Machine(), await token()
    told = await line.join(machine, issued.token)
    assert (told.pool_id, told.class_) == (pool.id, "metal-host")
    node = await with_client(lambda client: client.get_node(told.node_id))
    assert (node.name, node.agent, node.attestor) == ("m1", "test", "join-token")
    assert node.public_key == machine.public
    [used] = await with_client(lambda client: client.list_join_tokens(state="used").items)
    assert (used.node_id, used.id) == (told.node_id, issued.record.id)
    assert (await line.spec(machine)).node_id == told.node_id
    assert (await line.report(machine)).accepted


async def test_a_token_lets_one_machine_in_and_no_second(line, token, runtime):
    issued = await token()
    await line.join(Machine("m1"), issued.token)
    before = await rows(runtime, "SELECT * FROM nodes")
    with pytest.raises(UnauthenticatedError, match="unknown, used, revoked or expired"):
        await line.join(Machine("m2"), issued.token)
    assert await rows(runtime, "SELECT * FROM nodes") == before


async def test_of_many_machines_that_race_for_a_token_one_gets_in(line, token, runtime):
    issued = await token()
    machines = [Machine(f"m{at}") for at in range(6)]
    told = await asyncio.gather(
        *(line.join(each, issued.token) for each in machines), return_exceptions=True
    )
    lost = [each for each in told if isinstance(each, UnauthenticatedError)]
    assert len(lost) == 5
    [count] = await rows(runtime, "SELECT count(*) FROM nodes")
    assert count["count"] == 1


async def test_a_lost_answer_costs_nothing(line, token, runtime):
    machine, issued = Machine(), await token()
    first = await line.join(machine, issued.token)
    before = await rows(runtime, "SELECT * FROM events ORDER BY id")
    machine.node_id = None
    assert await line.join(machine, issued.token) == first
    assert await rows(runtime, "SELECT * FROM events ORDER BY id") == before


@pytest.mark.parametrize("end", ["expired", "revoked", "unknown"])
async def test_a_token_that_is_no_good_lets_nobody_in(line, token, with_client, clock, end):
    issued = await token(expires_in="1h")
    good = issued.token
    if end == "expired":
        clock.advance(hours=1)
    elif end == "revoked":
        await with_client(lambda client: client.revoke_join_token(issued.record.id))
    else:
        good = f"apj_{'x' * 43}.{good.rpartition('.')[2]}"
    with pytest.raises(UnauthenticatedError, match="unknown, used, revoked or expired"):
        await line.join(Machine(clock=clock), good)
    states = await with_client(lambda client: client.list_join_tokens().items)
    assert states[0].state == ("open" if end == "unknown" else end)


async def test_whoever_has_not_the_key_that_it_names_does_not_join(line, token, runtime):
    issued = await token()
    thief, owner = Machine("thief"), Machine("owner")
    stolen = thief.enrolling(issued.token, public_key=owner.public)
    answer = await line.send(thief.request("POST", "/v1/join", stolen))
    assert refusal_of(answer) == (401, "UNAUTHENTICATED")
    unsigned = {**thief.request("POST", "/v1/join", stolen), "headers": {}}
    unsigned["headers"] = {"Content-Type": "application/json"}
    assert refusal_of(await line.send(unsigned)) == (401, "UNAUTHENTICATED")
    changed = owner.request("POST", "/v1/join", owner.enrolling(issued.token))
    changed["content"] = changed["content"].replace(b'"owner"', b'"other"')
    assert refusal_of(await line.send(changed)) == (401, "UNAUTHENTICATED")
    assert await rows(runtime, "SELECT 1 FROM nodes") == []


async def test_a_machine_does_not_believe_another_server(line, token):
    issued = await token()
    machine = Machine()
    other = f"{issued.token.rpartition('.')[0]}.{'A' * 22}"
    with pytest.raises((AssertionError, UnauthenticatedError)):
        await line.join(machine, other)
    assert machine.server_key is None


async def test_the_secret_is_nowhere_but_in_the_answer(token, runtime):
    issued = await token(idempotency_key="k")
    secret = issued.token.removeprefix("apj_").partition(".")[0]
    for query in ("SELECT * FROM join_tokens", "SELECT * FROM events"):
        kept = str(await rows(runtime, query))
        assert secret not in kept
        assert issued.record.id in kept
    with pytest.raises(ConflictError, match="was shown then"):
        await token(idempotency_key="k")


async def test_a_token_is_for_the_class_that_is_meant(token):
    with pytest.raises(InvalidInputError, match="class: is not the pool's"):
        await token(**{"class": "slurm-host"})
    assert (await token(**{"class": "metal-host"})).record.class_ == "metal-host"
    with pytest.raises(InvalidInputError, match="expires_in"):
        await token(expires_in="31d")


async def test_a_pool_says_who_may_vouch(line, token, with_client, pool, monkeypatch):
    monkeypatch.setattr("apportion.pools.policy_rules._ATTESTORS", {"join-token"})
    monkeypatch.setattr("apportion.nodes.attesting._attestors", {"join-token": JoinTokens()})

    class Nobody:
        async def vouch(self, *_):
            return Voucher("tpm", "root", pool.id)

        async def spend(self, *_):
            pass

    add_attestor("tpm", Nobody())
    machine = Machine()
    fake = (await token()).token
    with pytest.raises(ForbiddenError, match="attestor"):
        await line.join(machine, fake, attestor="tpm")
    with pytest.raises(InvalidInputError, match="attestor"):
        await line.join(machine, fake, attestor="oracle")
    update = {"version": 1, "policy": {"joinAttestors": ["tpm"]}}
    await with_client(lambda client: client.update_pool(pool.id, update))
    with pytest.raises(InvalidStateError, match="joinAttestors"):
        await token()
    with pytest.raises(ForbiddenError, match="attestor"):
        await line.join(machine, fake)
    assert (await line.join(machine, fake, attestor="tpm")).pool_id == pool.id


async def test_a_machine_cannot_say_whose_it_is(line, token):
    machine, issued = Machine(), await token()
    document = {**machine.inventory(), "owner_tenant_id": "acme"}
    with pytest.raises(InvalidInputError, match="owner_tenant_id"):
        await line.join(machine, issued.token, inventory=document)
    assert await line.join(machine, issued.token)


async def test_a_node_that_was_imported_can_take_a_key(line, token, with_client, pool):
    known = await with_client(
        lambda client: client.join_node(pool.id, inventory("m1", gpu("H100", 0, node="m1")))
    )
    machine = Machine("m1")
    told = await line.join(machine, (await token()).token)
    assert told.node_id == known.id

    async def reasons():
        atoms = await with_client(lambda client: list(client.list_atoms().all()))
        return {atom.reason for atom in atoms}

    assert await reasons() == {"spec_not_converged"}
    await line.report(machine)
    assert await reasons() == {None}


async def test_a_name_that_has_a_key_is_not_taken_by_another(line, token):
    await line.join(Machine("m1"), (await token()).token)
    with pytest.raises(InvalidStateError, match="key of its own"):
        await line.join(Machine("m1", seed="another"), (await token()).token)


async def test_one_key_is_one_node(line, token):
    await line.join(Machine("m1", seed="same"), (await token()).token)
    with pytest.raises(ConflictError, match="another node has this key"):
        await line.join(Machine("m2", seed="same"), (await token()).token)


async def test_an_archived_pool_lets_nobody_in(line, token, with_client, pool):
    issued = await token()
    await with_client(lambda client: client.archive_pool(pool.id))
    with pytest.raises(InvalidStateError, match="archived"):
        await line.join(Machine(), issued.token)
    with pytest.raises(InvalidStateError, match="archived"):
        await token()
