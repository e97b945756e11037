"""Each type of event holds what the reference says, and tells whom it says."""

import re
from pathlib import Path

import pytest
from trust_machine import Machine

from apportion.nodes.service import Watch
from apportion.partitions.service import Gate
from apportion.store.connections import transaction
from apportion.testing.builders import ask, device, gpu, inventory, pool_of
from apportion.testing.nodes import SimulatedNode

pytestmark = [pytest.mark.anyio, pytest.mark.oldest]

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "events.md"


def documented():
    """Return what the reference says of each type's data."""
    text = REFERENCE.read_text("utf-8").split("## Types\n", 1)[1].split("\n## ", 1)[0]
    return dict(re.findall(r"^\| `([a-z._]+)` \|[^|]*\|[^|]*\| ([^|]*) \|$", text, re.MULTILINE))


def build_and_leave(client):
    """Make a site, move it, and give it up."""
    site = client.create_site({"name": "hall", "region": "north"})
    client.update_site(site.id, {"region": "south"})
    client.delete_site(site.id)


def split_anew(client, pool):
    """Ask for other slots, take that back, and ask for them again."""
    for version, replicas in ((1, 2), (2, 4), (3, 2)):
        client.update_pool(pool.id, {"version": version, "policy": {"replicas": replicas}})


def scatter(client, pool, start):
    """Reserve a slot on each of two GPUs: what kept them apart is gone again."""

    def slots(units):
        request = ask(pool.id, device("gpu.slot", units=units), start=start, duration="4h")
        return client.create_reservation(request).id

    first_gpu = slots(4)
    slots(1)
    second_gpu = slots(3)
    client.release_reservation(first_gpu)
    slots(1)
    client.release_reservation(second_gpu)


def plan_series(client, pool):
    """Reserve a window that comes again, far ahead."""
    days = {"days": ["mon"], "start": "09:00", "end": "17:00", "zone": "UTC", "count": 1}
    client.create_series(
        {
            "pool_id": pool.id,
            "devices": [{"class": "gpu"}],
            "recurrence": {**days, "from": "2036-12-01"},
        }
    )


def hook_on_and_off(client):
    """Make a webhook, silence it, remove it."""
    hook = client.create_webhook({"name": "h", "url": "https://example.com/"}).webhook
    client.update_webhook(hook.id, {"version": 1, "enabled": False})
    client.delete_webhook(hook.id)


def join_and_pass(client, machine):
    """Let a machine join by itself, and pass at the second attempt; one report gets lost.

    Its host is first otherwise than its pool asks.
    """
    pool = client.create_pool(pool_of("H100", name="new", acceptance=[{"kind": "diag.nvml"}]))
    client.revoke_join_token(client.create_join_token(pool.id, {"name": "m"}).record.id)
    machine.join(client, client.create_join_token(pool.id, {"name": "m"}).token)
    differs = {"cpu": {"done": False, "reason": "cpu_differs"}}
    machine.say(client, acceptance={"diag.nvml": {"passed": False}}, outcomes=differs)
    machine.sequence += 1
    machine.say(client, acceptance={"diag.nvml": {"passed": True}})


async def fall_silent(runtime, clock):
    """Let so much time go by that a node is not heard of."""
    watch = Watch(runtime)
    for _ in range(8):
        clock.advance(seconds=5)
        await watch.advance()


def hand_out(client):
    """Have a node say that it is done, and only then have made what was asked for."""
    pool = client.create_pool(pool_of("H100", "mig", name="demand", migLayout="dynamic"))
    node = SimulatedNode("d1", "H100")
    node_id = client.join_node(pool.id, node.inventory()).id
    node.read(client.get_spec(node_id))
    node.apply()
    client.report_node(node_id, node.report())
    held = client.create_reservation(ask(pool.id, device("gpu.mig", profile="3g.40gb")))
    node.read(client.get_spec(node_id))
    node.converged = dict.fromkeys(node.spec.units, node.spec.generation)
    client.report_node(node_id, node.report())
    node.apply()
    client.report_node(node_id, node.report())

    def say(state, **facts):
        said = {"allocation_id": f"{held.id}.0", "state": state, "at": "2026-03-02T09:00:00Z"}
        said["device"] = {"uuid": "MIG-d1-made-1", "gi_id": 1, "ci_id": 0}
        report = node.report().model_dump(by_alias=True)
        client.report_node(node_id, {**report, "allocations": [said | facts]})

    say("bound")
    client.release_reservation(held.id)
    say("ending", reason="holder_still_there")
    node.read(client.get_spec(node_id))
    say("released")


def stay_on(client, end):
    """Hand out a GPU till then to who does not leave, and reserve it from then on."""
    pool = client.create_pool(pool_of("H100", name="stays"))
    node = SimulatedNode("e1", "H100")
    node_id = client.join_node(pool.id, node.inventory()).id
    node.read(client.get_spec(node_id))
    node.apply()
    client.report_node(node_id, node.report())
    held = client.create_reservation(ask(pool.id, device(), duration="1h"))
    said = {"allocation_id": f"{held.id}.0", "state": "bound", "at": "2026-03-02T09:00:00Z"}
    report = node.report().model_dump(by_alias=True)
    said["device"] = {"uuid": "GPU-e1-0"}
    client.report_node(node_id, {**report, "allocations": [said]})
    client.create_reservation(ask(pool.id, device(), start=end, duration="4h"))


@pytest.fixture
def story(with_client, clock, runtime, reservations):
    """Let everything happen once."""
    machine = Machine("s2", clock=clock)

    def build(client):
        client.create_tenant({"id": "acme", "name": "Acme"})
        client.update_tenant("acme", {"name": "ACME"})
        token = client.create_token({"name": "t", "role": "viewer"}).record
        client.rotate_token(token.id)
        client.revoke_token(token.id)
        policy = client.create_policy(
            {"name": "p", "text": 'forbid(principal in Role::"node", action, resource);'}
        )
        client.update_policy(policy.id, {"version": 1, "description": "d"})
        client.delete_policy(policy.id)
        build_and_leave(client)
        pool = client.create_pool(pool_of("H100", maxPending="1h"))
        client.update_pool(pool.id, {"version": 1, "policy": {"maxPending": "2h"}})
        client.offer_pool(pool.id, "acme", {"quota": {"gpu": 1}})
        client.set_quota({"pool_id": pool.id, "resource": "gpu", "max": 5})
        client.unoffer_pool(pool.id, "acme")
        for _ in range(2):
            client.join_node(pool.id, inventory("n1", gpu("H100", 0)))
        later = clock().replace(hour=10)
        held = client.create_reservation(ask(pool.id, device(), start=later, duration="4h"))
        for duration in ("5h", "4h"):
            client.update_reservation(held.id, {"duration": duration})
        client.create_reservation(ask(pool.id, device(), start=later, duration="4h"))
        slots = client.create_pool(pool_of("T4", "mps", name="slots", replicas=4))
        node = client.join_node(slots.id, inventory("s1", gpu("T4", 0, node="s1")))
        client.update_node(node.id, {"mig_layout_from": "node"})
        client.create_reservation(ask(slots.id, device("gpu.slot"), duration="1h"))
        split_anew(client, slots)
        spread = client.create_pool(
            pool_of("H100", "timeslice", replicas=4, placement="spread", name="spread")
        )
        client.join_node(
            spread.id, inventory("n2", *(gpu("H100", at, node="n2") for at in range(2)))
        )
        scatter(client, spread, later)
        assert client.defragment_pool(spread.id, {"free_gpus": True, "apply": True}).moves
        plan_series(client, pool)
        hand_out(client)
        stay_on(client, later)
        join_and_pass(client, machine)
        hook_on_and_off(client)
        return pool

    def finish(client, pool):
        machine.say(client)
        client.revoke_node(machine.node_id)
        client.archive_pool(pool.id)
        client.delete_tenant("acme")

    async def run():
        pool = await with_client(build)
        gate = Gate(runtime)
        await gate.advance()
        for minutes in (120, 170, 70):
            clock.advance(minutes=minutes)
            await gate.advance()
            await reservations.lifecycle.advance()
        await fall_silent(runtime, clock)
        await with_client(lambda client: finish(client, pool))

    return run


async def test_the_data_of_each_type_is_what_the_reference_says(story, runtime):
    await story()
    async with transaction(runtime.db) as connection:
        cursor = await connection.execute("SELECT type, data, actor FROM events ORDER BY id")
        events = await cursor.fetchall()
    told = documented()
    # What is sent again must have failed for a day; the webhooks' tests see to it.
    # Who has no end is waited for: the gate's tests see to that.
    unheard = {"webhook.resent", "node.mig.waiting"}
    assert set(told) - {each["type"] for each in events} == unheard
    wrong = []
    for each in events:
        said = told[each["type"]]
        if "the data is the [reason]" in said:
            continue
        always = {name for name in said.split(";")[0].split(", ") if re.fullmatch("[a-z_]+", name)}
        known = set(re.findall("[a-z_]+", said))
        of_others = each["actor"] == "root"
        missing = set() if of_others else always - set(each["data"])
        if missing or set(each["data"]) - known:
            wrong.append((each["type"], sorted(missing), sorted(set(each["data"]) - known)))
    assert wrong == []
