"""Lists: every item once whatever the page size, filters, and cursors that nobody may invent."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.doors.paging import cut, decode_cursor, encode_cursor
from apportion.errors import InvalidInputError
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

pytestmark = [pytest.mark.anyio, pytest.mark.oldest]


@pytest.fixture
async def stocked(with_client):
    """Give five pools; the first has three nodes of two GPUs, one of them split, and six asks."""

    def stock(client):
        pools = [client.create_pool(pool_of("H100", "mig", name=f"p{at}")) for at in range(5)]
        nodes = [
            client.join_node(
                pools[0].id,
                inventory(
                    name,
                    gpu("H100", 0, "3g.40gb@4", "1g.10gb@0", node=name),
                    gpu("H100", 1, node=name),
                ),
            )
            for name in ("n1", "n2", "n3")
        ]
        made = [
            client.create_reservation(
                ask(pools[0].id, device("gpu.mig", profile="3g.40gb"), duration="1h")
            )
            for _ in range(6)
        ]
        return pools, nodes, made

    return await with_client(stock)


async def test_every_list_gives_each_item_once_whatever_the_page_size(stocked, with_client):
    def read(client):
        pools, nodes, made = stocked
        lists = {
            client.list_sites: 1,
            client.list_pools: len(pools),
            client.list_nodes: len(nodes),
            client.list_gpus: 6,
            client.list_atoms: 12,
            client.list_quotas: 35,
            client.list_reservations: len(made),
            client.list_events: 14,
        }
        for listing, count in lists.items():
            whole = listing(limit=1000).items
            assert len(whole) == count, listing
            for size in (1, 2, count):
                assert [*listing(limit=size).all()] == whole, listing

    await with_client(read)


async def test_series_are_listed_once_each_whatever_the_page_size(with_client, clock):
    def read(client):
        pool = client.create_pool(pool_of("H100"))
        client.join_node(pool.id, inventory("n1", gpu("H100", 0)))
        made = []
        for hour in range(1, 4):
            made.append(client.create_series(series_of(pool, hour)).id)
            clock.advance(seconds=1)
        for size in (1, 2, 3):
            found = [each.id for each in client.list_series(limit=size).all()]
            assert found == made[::-1], size
        client.release_series(made[0])
        assert [each.id for each in client.list_series(live=False).all()] == made[:1]
        assert client.list_series(name="none").items == []

    await with_client(read)


def series_of(pool, hour):
    """Build a series of one window, far ahead."""
    times = {"days": ["mon"], "start": f"0{hour}:00", "end": f"0{hour + 1}:00", "zone": "UTC"}
    return {
        "pool_id": pool.id,
        "resources": {"vcpu": 1},
        "recurrence": {**times, "from": "2026-04-01", "count": 1},
    }


async def test_a_list_is_in_the_order_that_it_promises(stocked, with_client):
    def read(client):
        assert [each.id for each in client.list_pools().items] == sorted(
            each.id for each in stocked[0]
        )
        newest_first = [each.created_at for each in client.list_reservations().items]
        assert newest_first == sorted(newest_first, reverse=True)

    await with_client(read)


async def test_the_last_page_has_no_cursor_and_a_full_one_only_if_more_follow(stocked, http):
    pages = []
    cursor = ""
    while cursor is not None:
        page = (await http.get(f"/v1/pools?limit=2{cursor and '&cursor=' + cursor}")).json()
        pages.append(len(page["items"]))
        cursor = page["next_cursor"]
    assert pages == [2, 2, 1]
    assert (await http.get("/v1/pools?limit=5")).json()["next_cursor"] is None


async def test_what_happens_while_a_list_is_read_neither_repeats_nor_hides_items(
    stocked, with_client, clock
):
    def read(client):
        pool = stocked[0][0]
        first = client.list_reservations(limit=3)
        clock.advance(seconds=1)
        client.create_reservation(ask(pool.id, device("gpu.mig"), duration="1h"))
        names = [each.id for each in first.all()]
        assert sorted(names) == sorted(each.id for each in stocked[2])

    await with_client(read)


async def test_filters_narrow_each_list(stocked, with_client):
    def read(client):
        pool, node = stocked[0][0], stocked[1][0]
        assert [each.name for each in client.list_pools(name="p3").items] == ["p3"]
        assert len(client.list_pools(gpu_model="h100", sharing="mig").items) == 5
        assert client.list_pools(sharing="mps").items == []
        assert len(client.list_nodes(pool_id=pool.id, health="healthy").items) == 3
        assert [each.id for each in client.list_nodes(name="n1").items] == [node.id]
        assert {each.node for each in client.list_gpus(node="n2").items} == {"n2"}
        whole = client.list_atoms(class_="gpu", bookable=True).items
        assert {each.id for each in whole} == {"GPU-n1-1", "GPU-n2-1", "GPU-n3-1"}
        assert len(client.list_atoms(profile="MIG-3G.40GB", gpu_id="GPU-n1-0").items) == 1
        placed = client.list_reservations(pool_id=pool.id, states=["placed", "active"]).items
        assert {each.state for each in placed} <= {"placed", "active"}
        assert len(placed) == 3
        assert len(client.list_quotas(pool_id=pool.id).items) == 7

    await with_client(read)


async def test_events_can_be_followed_from_the_end_on(stocked, with_client):
    def read(client):
        *_, last = follow(client)
        assert last.items == []
        client.set_quota({"pool_id": stocked[0][0].id, "resource": "gpu", "max": 3})
        news = client.list_events(cursor=last.next_cursor).items
        assert [each.type for each in news] == ["quota.updated"]

    def follow(client):
        page = client.list_events(limit=5)
        while page.items:
            yield page
            page = client.list_events(limit=5, cursor=page.next_cursor)
        yield page

    await with_client(read)


async def test_events_are_filtered_by_object_and_by_the_beginning_of_their_type(
    stocked, with_client
):
    def read(client):
        pool = stocked[0][0]
        [created] = client.list_events(subject=pool.id).items
        assert (created.type, created.tenantid) == ("pool.created", "root")
        types = {each.type for each in client.list_events(type_prefix="node.").items}
        assert types == {"node.joined"}

    await with_client(read)


LISTS = [
    "/v1/sites",
    "/v1/pools",
    "/v1/nodes",
    "/v1/gpus",
    "/v1/atoms",
    "/v1/quotas",
    "/v1/reservations",
    "/v1/series",
    "/v1/events",
    "/v1/audit",
    "/v1/webhooks",
]


def coined(*parts):
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).rstrip(b"=").decode()


async def test_a_cursor_that_no_page_gave_is_refused_everywhere(http):
    wrong = ["x", "!", "é", "e30", "bnVsbA", coined("list_pools", 1), coined(), "A" * 500]
    wrong += [coined("list_other", "a"), coined("list_reservations", "2026-03-02T09:00:00", "r")]
    wrong += [coined("list_events", "1.x"), coined("list_pools", "\0")]
    wrong += [coined("list_pools", "\ud800")]
    for path in LISTS:
        for cursor in wrong:
            response = await http.get(path, params={"cursor": cursor})
            assert response.status_code == 400, (path, cursor)
            told = response.json()
            assert (told["field"], told["code"]) == ("cursor", "INVALID_INPUT")


async def test_a_cursor_of_another_list_is_refused_instead_of_skipping_items(stocked, http):
    cursor = (await http.get("/v1/pools?limit=1")).json()["next_cursor"]
    response = await http.get("/v1/nodes", params={"cursor": cursor})
    assert response.status_code == 400


@given(st.text())
def test_any_text_as_a_cursor_is_read_or_refused(text):
    try:
        position = decode_cursor("list_pools", text, "")
    except InvalidInputError as error:
        assert error.field == "cursor"  # noqa: PT017 - both ways are right
    else:
        assert encode_cursor("list_pools", *position)


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))))
def test_a_cursor_reads_back_as_it_was_written(position):
    cursor = encode_cursor("list_x", *position)
    assert decode_cursor("list_x", cursor, *position) == tuple(position)


@given(st.lists(st.integers()), st.integers(1, 10))
def test_a_page_has_a_cursor_exactly_when_something_is_left_over(found, limit):
    items, cursor = cut("list_x", found[: limit + 1], limit, lambda each: [str(each)])
    assert items == found[:limit]
    assert (cursor is not None) == (len(found) > limit)
