"""The rules that the database itself holds, attacked one by one with plain SQL."""

import pytest
from psycopg import sql
from psycopg.errors import ExclusionViolation, IntegrityError

from apportion.store.connections import Pool, transaction

pytestmark = pytest.mark.anyio

# Two H100 (ids 1 and 2) and a GPU of four slots (3). GPU 1 is cut into 3g+2g+2g, and was seven 1g
# before; the slot and the whole are atoms as well.
GROUND = """
INSERT INTO tenants (id, ancestors, name, created_at)
    VALUES ('root', '{root}', 'Root', '2026-03-01');
INSERT INTO sites (id, tenant_id, name, region, kind, created_at)
    VALUES ('site_1', 'root', 'main', 'local', 'shared', '2026-03-01');
INSERT INTO pools (id, tenant_id, site_id, name, class, gpu_model, sharing, agent, policy, replicas,
        created_at) VALUES
    ('mig', 'root', 'site_1', 'mig', 'metal-host', 'H100', 'mig', 'none', '{}', NULL, '2026-03-01'),
    ('slots', 'root', 'site_1', 'slots', 'metal-host', 'T4', 'mps', 'none', '{}', 4, '2026-03-01');
INSERT INTO quotas VALUES ('root', 'mig', 'gpu.mig', 10, 0);
INSERT INTO nodes (uid, tenant_id, pool_id, name, target, controller, health, inventory,
        inventory_at, created_at) VALUES
    ('node_1', 'root', 'mig', 'n1', 'direct', 'platform', 'healthy', '{}', '2026-03-01',
        '2026-03-01');
INSERT INTO node_resources VALUES (1, 'root', 'vcpu', 64000, 2, 128000, '2026-03-01');
INSERT INTO mig_placements VALUES
    ('h100', '3g.40gb', 4, '{[4,8)}'), ('h100', '2g.20gb', 0, '{[0,2)}'),
    ('h100', '2g.20gb', 2, '{[2,4)}'), ('h100', '1g.10gb', 0, '{[0,1)}'),
    ('h100', '1g.10gb', 4, '{[4,5)}'), ('h200', '1g.18gb', 0, '{[0,1)}');
INSERT INTO gpus (uuid, tenant_id, pool_id, node_id, index, product, model, board, mig_current,
        mig_pending, split, ruler, nvlink, present) VALUES
    ('GPU-1', 'root', 'mig', 1, 0, 'H100', 'H100', 'h100', true, true, 'mig', 8, '[]', true),
    ('GPU-2', 'root', 'mig', 1, 1, 'H100', 'H100', 'h100', true, true, 'mig', 8, '[]', true),
    ('GPU-3', 'root', 'slots', 1, 2, 'T4', 'T4', NULL, false, false, 'slots', 4, '[]', true);
INSERT INTO atoms (tenant_id, pool_id, gpu_id, key, class, units, generation, board, profile, start,
        share_num, share_den, bookable, reason, attributes) VALUES
    ('root', 'mig', 1, 'GPU-1', 'gpu', '{[0,)}', 1, NULL, NULL, NULL, 1, 1, false, 'split', '{}'),
    ('root', 'mig', 1, 'a', 'gpu.mig', '{[4,8)}', 1, 'h100', '3g.40gb', 4, 3, 7, true, NULL, '{}'),
    ('root', 'mig', 1, 'b', 'gpu.mig', '{[0,2)}', 1, 'h100', '2g.20gb', 0, 2, 7, true, NULL, '{}'),
    ('root', 'mig', 1, 'c', 'gpu.mig', '{[0,1)}', 1, 'h100', '1g.10gb', 0, 1, 7, false, 'retired',
        '{}'),
    ('root', 'mig', 1, 'd', 'gpu.mig', '{[4,5)}', 1, 'h100', '1g.10gb', 4, 1, 7, false, 'retired',
        '{}'),
    ('root', 'mig', 2, 'e', 'gpu.mig', '{[0,2)}', 1, 'h100', '2g.20gb', 0, 2, 7, true, NULL, '{}'),
    ('root', 'slots', 3, 'f', 'gpu.slot', '{[0,1)}', 1, NULL, NULL, NULL, 1, 4, true, NULL, '{}');
INSERT INTO reservations (id, tenant_id, caller, pool_id, candidates, state, reason, devices,
        vcpu_milli, memory_mib, duration, starts_at, ends_at, pending_until, charges,
        charged_tenant_id, request_hash, created_at, updated_at)
    VALUES ('res_1', 'root', 'tok', 'mig', '{mig}', 'placed', '{"code": "placed"}', '[{}]', 0, 0,
        '1h', '2026-03-02 10:00', '2026-03-02 12:00', '2026-03-03', '{}', 'root', '', '2026-03-01',
        '2026-03-01');
"""
PARENT, THREE, TWO, OLD_ONE, OLD_FOUR, OTHER_TWO, SLOT = range(1, 8)
UNITS = {
    PARENT: "{[0,)}",
    THREE: "{[4,8)}",
    TWO: "{[0,2)}",
    OLD_ONE: "{[0,1)}",
    OLD_FOUR: "{[4,5)}",
    OTHER_TWO: "{[0,2)}",
}
MORNING = "[2026-03-02 10:00+00,2026-03-02 12:00+00)"


@pytest.fixture
async def ground(db: Pool):
    async with transaction(db) as connection:
        await connection.execute(GROUND)
    return db


def row_of(table: str, **values):
    statement = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
        sql.Identifier(table),
        sql.SQL(", ").join(map(sql.Identifier, values)),
        sql.SQL(", ").join(sql.Placeholder() * len(values)),
    )
    return statement, list(values.values())


def booking(**changes):
    """Build one booking of the 3g.40gb of GPU 1 for the morning, changed as said."""
    during = changes.pop("during", MORNING)
    row = {
        "tenant_id": "root",
        "pool_id": "mig",
        "gpu_id": 1,
        "reservation_id": "res_1",
        "piece": 0,
        "device": 0,
        "class": "gpu.mig",
        "atom_id": THREE,
        "generation": 1,
        "units": UNITS[THREE],
        "during": during,
        "planned": during,
        "share_num": 3,
        "share_den": 7,
    }
    return row_of("bookings", **{**row, **changes})


def whole(**changes):
    return booking(**{"class": "gpu", "units": "{[0,)}", "atom_id": PARENT, **changes})


def repartition(**changes):
    change = {"class": "partition", "reservation_id": None, "partition_id": "p1", "atom_id": None}
    return booking(**{"units": "{[0,)}", **change, **changes})


def slots(units: str, **changes):
    slot = {"pool_id": "slots", "gpu_id": 3, "class": "gpu.slot", "atom_id": None, "units": units}
    return booking(**{**slot, **changes})


def instance(atom: int, **changes):
    gpu = 2 if atom == OTHER_TWO else 1
    return booking(**{"gpu_id": gpu, "atom_id": atom, "units": UNITS[atom], **changes})


async def write(pool: Pool, *statements):
    """Write all in one transaction; raise what the database refuses, as it says it."""
    async with pool.connection() as connection:
        for statement, values in statements:
            await connection.execute(statement, values)


async def refusal(pool: Pool, *statements) -> str | None:
    """Return the name of the constraint that refuses the last statement, None when none does."""
    await write(pool, *statements[:-1])
    try:
        await write(pool, statements[-1])
    except IntegrityError as error:
        return error.diag.constraint_name or f"{error.diag.table_name}.{error.diag.column_name}"
    return None


CLASHES = {
    "an instance with itself": (instance(THREE), instance(THREE)),
    "an instance with its parent": (instance(THREE), whole()),
    "a parent with its instance": (whole(), instance(TWO)),
    "an instance of another layout": (instance(TWO), instance(OLD_ONE)),
    "a layout with the one before it": (instance(OLD_FOUR), instance(THREE)),
    "a repartition with a live tenant": (instance(THREE), repartition()),
    "a tenant with a repartition": (repartition(), instance(TWO)),
    "two repartitions": (repartition(), repartition(partition_id="p2")),
    "a whole GPU with itself": (whole(), whole()),
    "a slot with itself": (slots("{[1,2)}"), slots("{[1,2)}")),
    "sets of slots that share one": (slots("{[0,1),[2,3)}"), slots("{[2,4)}")),
    "a slot with the whole of its GPU": (
        slots("{[3,4)}"),
        slots("{[0,)}", **{"class": "gpu"}),
    ),
    "a repartition with a slot": (
        slots("{[0,)}", **{"class": "partition", "reservation_id": None, "partition_id": "p"}),
        slots("{[0,1)}"),
    ),
    "a window within another": (
        instance(THREE),
        instance(THREE, during="[2026-03-02 10:30+00,2026-03-02 10:31+00)"),
    ),
    "a window that overlaps by a microsecond": (
        instance(THREE),
        instance(THREE, during="[2026-03-02 11:59:59.999999+00,2026-03-02 13:00+00)"),
    ),
    "a window without an end": (
        instance(THREE, during="[2026-03-02 09:00+00,)"),
        instance(THREE, during="[2099-01-01 00:00+00,2099-01-02 00:00+00)"),
    ),
    "an end at infinity": (
        instance(THREE, during="[2026-03-02 09:00+00,infinity)"),
        instance(THREE, during="[2099-01-01 00:00+00,2099-01-02 00:00+00)"),
    ),
}
NEIGHBOURS = {
    "instances side by side": (instance(THREE), instance(TWO)),
    "instances of two GPUs": (instance(TWO), instance(OTHER_TWO)),
    "different slots": (slots("{[0,1),[2,3)}"), slots("{[1,2),[3,4)}")),
    "adjacent windows": (
        instance(THREE),
        instance(THREE, during="[2026-03-02 12:00+00,2026-03-02 14:00+00)"),
        instance(THREE, during="[2026-03-02 09:00+00,2026-03-02 10:00+00)"),
    ),
    "a voided one": (instance(THREE, voided_at="2026-03-02 10:00+00"), instance(THREE)),
}


@pytest.mark.parametrize("case", CLASHES)
async def test_two_bookings_never_share_units_at_an_instant(ground: Pool, case: str):
    with pytest.raises(ExclusionViolation) as caught:
        await write(ground, *CLASHES[case])
    assert caught.value.diag.constraint_name == "bookings_no_overlap"


@pytest.mark.parametrize("case", NEIGHBOURS)
async def test_bookings_that_share_no_unit_or_no_instant_stand_together(ground: Pool, case: str):
    assert await refusal(ground, *NEIGHBOURS[case]) is None


@pytest.mark.parametrize(
    ("changes", "constraint"),
    [
        ({"units": None}, "bookings.units"),
        ({"during": None}, "bookings.during"),
        ({"planned": None}, "bookings.planned"),
        ({"units": "{}"}, "bookings_units_not_empty"),
        ({"units": "{[-1,2)}"}, "bookings_units_not_empty"),
        ({"units": "{(,2)}"}, "bookings_units_not_empty"),
        ({"during": "empty"}, "bookings_during_half_open"),
        ({"during": "(,)"}, "bookings_during_half_open"),
        ({"during": "(,2026-03-02 12:00+00)"}, "bookings_during_half_open"),
        ({"during": "(2026-03-02 10:00+00,2026-03-02 12:00+00)"}, "bookings_during_half_open"),
        ({"during": "[2026-03-02 10:00+00,2026-03-02 12:00+00]"}, "bookings_during_half_open"),
        ({"during": "[2026-03-02 10:00+00,2026-03-02 10:00+00)"}, "bookings_during_half_open"),
        ({"planned": "empty"}, "bookings_planned_within_during"),
        (
            {"planned": "[2026-03-02 10:00+00,2026-03-02 12:00:00.000001+00)"},
            "bookings_planned_within_during",
        ),
        ({"planned": "[2026-03-02 10:00+00,)"}, "bookings_planned_within_during"),
        ({"class": "gpu.tpu"}, "bookings_class_known"),
        ({"reservation_id": None}, "bookings_one_holder"),
        ({"partition_id": "p1"}, "bookings_one_holder"),
        ({"reservation_id": None, "partition_id": "p1"}, "bookings_one_holder"),
        ({"units": "{[0,)}", "atom_id": PARENT}, "bookings_whole_is_every_unit"),
        ({"class": "gpu", "atom_id": None}, "bookings_whole_is_every_unit"),
        ({"atom_id": None}, "bookings_mig_lies_on_atom"),
        ({"share_num": 8}, "bookings_share_range"),
        ({"share_num": -1}, "bookings_share_range"),
        ({"share_den": 0}, "bookings_share_range"),
        ({"voided_at": "2026-03-02 10:00:00.000001+00"}, "bookings_void_before_start"),
        ({"pool_id": "slots"}, "bookings_gpu_fkey"),
        ({"gpu_id": 99}, "bookings_gpu_fkey"),
        ({"reservation_id": "res_9"}, "bookings_reservation_fkey"),
        # Off its atom: other units, the atom of another GPU, of another class, none at all.
        ({"units": "{[4,7)}"}, "bookings_atom_fkey"),
        ({"units": "{[4,9)}"}, "bookings_atom_fkey"),
        ({"atom_id": OTHER_TWO, "units": "{[0,2)}"}, "bookings_atom_fkey"),
        ({"atom_id": 99}, "bookings_atom_fkey"),
        (
            {"atom_id": SLOT, "gpu_id": 3, "pool_id": "slots", "units": "{[0,1)}"},
            "bookings_atom_fkey",
        ),
    ],
)
async def test_a_booking_has_no_hole_to_slip_through(ground: Pool, changes, constraint: str):
    assert await refusal(ground, booking(**changes)) == constraint


@pytest.mark.parametrize("units", ["{}", "{(,2)}", "{[-1,1)}", "{(,)}"])
async def test_slots_are_counted_from_nought(ground: Pool, units: str):
    assert await refusal(ground, slots(units)) == "bookings_units_not_empty"


async def test_a_window_backwards_is_no_range_at_all(ground: Pool):
    backwards = "[2026-03-02 12:00+00,2026-03-02 10:00+00)"
    with pytest.raises(Exception, match="lower bound must be less than or equal"):
        await write(ground, booking(during=backwards))


async def test_what_is_kept_from_others_may_be_longer_than_what_is_billed(ground: Pool):
    kept = "[2026-03-02 10:00+00,2026-03-02 12:05+00)"
    after = "[2026-03-02 12:04+00,2026-03-02 13:00+00)"
    refused = await refusal(
        ground, booking(during=kept, planned=MORNING), booking(during=after, piece=1)
    )
    assert refused == "bookings_no_overlap"


async def test_units_can_be_swapped_only_by_lifting_both(ground: Pool):
    await write(ground, slots("{[0,1)}", piece=0), slots("{[1,2)}", piece=1))
    swap = """UPDATE bookings SET units = CASE piece WHEN 0 THEN '{[1,2)}'::int4multirange
        ELSE '{[0,1)}' END"""
    with pytest.raises(ExclusionViolation):
        await write(ground, (swap, []))
    lift = "UPDATE bookings SET voided_at = '2026-03-02 09:00+00'"
    await write(ground, (lift, []), (swap + ", voided_at = NULL", []))


async def test_a_booking_needs_its_reservation_only_at_commit(ground: Pool):
    late = row_of(
        "reservations",
        id="res_2",
        tenant_id="root",
        caller="tok",
        pool_id="mig",
        candidates=["mig"],
        state="placed",
        reason='{"code": "placed"}',
        devices="[{}]",
        vcpu_milli=0,
        memory_mib=0,
        duration="1h",
        starts_at="2026-03-02 10:00+00",
        ends_at="2026-03-02 12:00+00",
        pending_until="2026-03-03",
        charges="{}",
        charged_tenant_id="root",
        request_hash=b"",
        created_at="2026-03-01",
        updated_at="2026-03-01",
    )
    await write(ground, booking(reservation_id="res_2"), late)
    assert (await refusal(ground, late)) == "reservations_pkey"


ATOM = {
    "tenant_id": "root",
    "pool_id": "mig",
    "gpu_id": 1,
    "key": "x",
    "class": "gpu.mig",
    "units": "{[2,4)}",
    "generation": 1,
    "board": "h100",
    "profile": "2g.20gb",
    "start": 2,
    "share_num": 2,
    "share_den": 7,
    "bookable": True,
    "attributes": "{}",
}


@pytest.mark.parametrize(
    ("changes", "constraint"),
    [
        ({}, None),
        ({"units": "{[2,5)}"}, "atoms_placement_fkey"),
        ({"start": 1, "units": "{[1,3)}"}, "atoms_placement_fkey"),
        ({"profile": "4g.40gb"}, "atoms_placement_fkey"),
        # Legal on the board that it names, and the GPU is another.
        (
            {"board": "h200", "profile": "1g.18gb", "start": 0, "units": "{[0,1)}"},
            "atoms_gpu_board_fkey",
        ),
        ({"board": None}, "atoms_mig_is_legal"),
        ({"profile": None}, "atoms_mig_is_legal"),
        ({"board": None, "bookable": False, "reason": "geometry_unknown"}, "atoms_mig_is_legal"),
        (
            {"board": None, "bookable": False, "reason": "x", "units": "{[0,)}", "share_num": 0},
            None,
        ),
        ({"class": "gpu.tpu"}, "atoms_class_known"),
        ({"units": "{}"}, "atoms_units_not_empty"),
        ({"reason": "split"}, "atoms_reason_given"),
        ({"bookable": False}, "atoms_reason_given"),
        ({"share_num": 0}, "atoms_share_range"),
        ({"share_num": 8}, "atoms_share_range"),
        ({"share_den": 0}, "atoms_share_range"),
        ({"retired_at": "2026-03-02"}, "atoms_retired_unbookable"),
        ({"key": "a"}, "atoms_live_key"),
        ({"gpu_id": 99, "board": None}, "atoms_mig_is_legal"),
    ],
)
async def test_an_atom_that_can_be_booked_is_legal(ground: Pool, changes, constraint):
    assert await refusal(ground, row_of("atoms", **{**ATOM, **changes})) == constraint
