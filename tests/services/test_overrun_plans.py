"""Who overstays is found among 20,000 holders without a look at those whose window goes on."""

from datetime import timedelta

import pytest
from services_world import World
from test_holder_overrun import Telling, key, place

from apportion.bookings import service as bookings
from apportion.nodes import assignments
from apportion.reservations import rows
from apportion.store.connections import open_pool
from apportion.testing.builders import MONDAY, pool_of

pytestmark = [pytest.mark.anyio, pytest.mark.oldest]
MANY = 20_000
HOUR = timedelta(hours=1)
# As many GPUs as the first, each in its holder's hands for some days.
FILL = """
    INSERT INTO gpus OVERRIDING SYSTEM VALUE
    SELECT (jsonb_populate_record(
        NULL::gpus,
        to_jsonb(first) || jsonb_build_object('id', first.id + n, 'uuid', 'GPU-' || n, 'index', n)
    )).*
    FROM gpus AS first, generate_series(10, %(many)s) AS n;

    INSERT INTO reservations
    SELECT (jsonb_populate_record(
        first, jsonb_build_object('id', 'res_' || n, 'state', 'active', 'ends_at', '2026-03-09Z')
    )).*
    FROM (SELECT reservations FROM reservations ORDER BY id LIMIT 1) AS one (first),
        generate_series(10, %(many)s) AS n;

    INSERT INTO bookings (
        tenant_id, pool_id, gpu_id, reservation_id, piece, device, class, atom_id, generation,
        units, during, planned, share_num, share_den
    )
    SELECT
        first.tenant_id, first.pool_id, gpus.id, 'res_' || index, index, 0, class, NULL, generation,
        units, days, days, share_num, share_den
    FROM (SELECT * FROM bookings ORDER BY id LIMIT 1) AS first,
        LATERAL (SELECT tstzrange(lower(during), lower(during) + '5 days') AS days) AS longer,
        gpus
    WHERE index >= 10;

    INSERT INTO assignments (
        booking_id, tenant_id, node_id, gpu_id, reservation_id, piece, generation, state, since,
        reason, bound
    )
    SELECT
        bookings.id, bookings.tenant_id, node_id, gpus.id, reservation_id, piece, 2, 'ready',
        lower(during), '{"code": "device_there"}', '{"report": 1}'
    FROM bookings JOIN gpus ON gpus.id = gpu_id
    WHERE index >= 10;

    UPDATE assignments SET state = 'withdrawn' WHERE piece = 0"""


@pytest.fixture(scope="module")
async def crowd(template):
    """Give a world of so many holders; one does not leave, and the next one's window begins."""
    async with template.clone() as dsn, open_pool(dsn) as db:
        world = World(db)
        nodes = Telling(world, await world.pool(pool_of("H100")))
        await nodes.join("n1", gpus=1, layout=None)
        held = await place(nodes, duration="1h")
        after = await place(nodes, start=MONDAY + HOUR, duration="1h")
        await nodes.say(**{key(held): {"state": "bound"}})
        async with db.connection() as connection:
            for statement in FILL.split(";"):
                await connection.execute(statement, {"many": MANY})
            await connection.commit()
            await connection.set_autocommit(True)
            await connection.execute("VACUUM ANALYZE")
            await connection.set_autocommit(False)
        world.clock.advance(hours=1)
        yield world, after


async def read(world, query, **parameters):
    """Return what a statement finds, how many blocks it reads, and what it reads in sequence."""
    async with world.db.connection() as connection:
        cursor = await connection.execute(query, parameters)
        found = await cursor.fetchall()
        text = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + query
        await connection.rollback()
        cursor = await connection.execute(text, parameters)
        plan = (await cursor.fetchone())["QUERY PLAN"][0]["Plan"]
        await connection.rollback()
    scans = {each["Relation Name"] for each in walk(plan) if each["Node Type"] == "Seq Scan"}
    return found, plan["Shared Hit Blocks"] + plan["Shared Read Blocks"], scans


def walk(plan):
    yield plan
    for part in plan.get("Plans", ()):
        yield from walk(part)


async def test_who_is_to_be_kept_is_found_by_an_index_of_those_alone(crowd):
    world, _ = crowd
    query = assignments._QUERIES["to_keep"]
    found, blocks, scans = await read(world, query, before=world.clock() + 2 * HOUR)
    assert len(found) == 0, "somebody has the units next"
    assert blocks < 60
    assert scans <= {"nodes"}


async def test_who_is_in_the_way_is_found_from_those_who_stay(crowd):
    world, after = crowd
    query = rows.QUERIES["in_the_way"]
    for ids in (None, [after.id]):
        found, blocks, scans = await read(world, query, now=world.clock(), ids=ids)
        assert [row["reservation_id"] for row in found] == [after.id]
        assert blocks < 80
        assert scans <= {"nodes", "reservations"}


async def test_what_nobody_had_is_found_from_those_who_stay(crowd):
    world, after = crowd
    query = bookings._QUERIES["give_up"]
    found, blocks, scans = await read(world, query, ids=[after.id])
    assert [row["reservation_id"] for row in found] == [after.id]
    assert blocks < 120
    assert scans <= {"nodes"}
