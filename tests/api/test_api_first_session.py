"""A first session over the API, as a person types it: pool, node, reservation, usage."""

from fractions import Fraction

import pytest

from apportion.testing.builders import MONDAY, ask, device, gpu, inventory, pool_of

pytestmark = pytest.mark.anyio


async def test_two_of_four_slots_and_a_3g_instance_for_an_hour_are_13_14ths(
    with_client, reservations, clock
):
    def reserve(client):
        mig = client.create_pool(pool_of("H100", "mig"))
        node = client.join_node(
            mig.id, inventory("n1", gpu("H100", 0, "3g.40gb@4", "2g.20gb@0", node="n1"))
        )
        assert (node.pool_id, node.gpus, node.health) == (mig.id, 1, "healthy")
        sliced = client.create_pool(pool_of("H100", "timeslice", replicas=4))
        client.join_node(sliced.id, inventory("n2", gpu("H100", 0, node="n2")))
        slots = client.create_reservation(
            ask(sliced.id, device("gpu.slot", 2), duration="1h", key="k")
        )
        part = client.create_reservation(
            ask(mig.id, device("gpu.mig", profile="3g.40gb"), duration="1h", vcpu=4)
        )
        assert [str(booking.share) for booking in part.bookings] == ["3/7"]
        assert [booking.class_ for booking in slots.bookings] == ["gpu.slot"] * 2
        return slots

    slots = await with_client(reserve)
    clock.advance(hours=1)
    await reservations.lifecycle.advance()
    usage = await with_client(lambda client: client.get_usage(MONDAY))
    assert [(each.meter, each.gpu_hours, each.gpu_hours_decimal) for each in usage.totals] == [
        ("gpu.h100.hours", "13/14", "0.928571")
    ]
    assert sum(Fraction(each.gpu_hours) for each in usage.items) == Fraction(13, 14)
    ended = await with_client(lambda client: client.get_reservation(slots.id))
    assert (ended.state, ended.reason["code"]) == ("ended", "expired")
