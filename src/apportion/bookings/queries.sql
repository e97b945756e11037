-- name: hold_gpus
-- Whoever books or re-deals units of a GPU, or takes in a report of it, holds its row until the end:
-- two who insert what clashes would otherwise wait for each other within the exclusion constraint,
-- and a deadlock is told only after a second.
SELECT gpus.id, pg_current_xact_id()::text AS xid
FROM gpus
JOIN unnest(%(ids)s::int[], %(generations)s::int[]) AS planned (id, generation)
    ON gpus.id = planned.id AND layout_generation = generation
WHERE present AND unbookable_reason IS NULL
ORDER BY gpus.id
FOR NO KEY UPDATE OF gpus;

-- name: before_holding
SAVEPOINT before_holding;

-- name: hold_anew
ROLLBACK TO SAVEPOINT before_holding;

-- name: book_unless_overtaken
-- All that others have changed since a position, of GPUs and hosts, where some of it may be in the way; else
-- nothing, and the rows are booked. A clash with what was there before is an error: to search the constraint's
-- index once more for every row, as ON CONFLICT does, costs more than clashes do.
WITH changed AS MATERIALIZED (
    SELECT *, voided_at IS NULL AND (upper_inf(during) OR upper(during) > %(now)s) AS live
    FROM bookings
    WHERE changed_xid >= %(since)s::text::xid8 AND changed_xid <> ALL (%(own)s::text[]::xid8[])
), clash AS MATERIALIZED (
    SELECT EXISTS (
        SELECT FROM changed
        JOIN unnest(
            %(gpus)s::int[], %(units)s::text[], %(starts)s::timestamptz[], %(ends)s::timestamptz[]
        ) AS wanted (gpu_id, units, starts, ends) USING (gpu_id)
        WHERE live
            AND changed.units && wanted.units::int4multirange
            AND during && tstzrange(starts, ends)
    ) AS found
), host_changed AS MATERIALIZED (
    SELECT *
    FROM host_bookings
    WHERE changed_xid >= %(since)s::text::xid8 AND changed_xid <> ALL (%(own)s::text[]::xid8[])
), crowded AS MATERIALIZED (
    -- Counted as if all were there at once: it may be that there is room after all.
    SELECT EXISTS (
        SELECT FROM unnest(
            %(nodes)s::int[], %(vcpu)s::bigint[], %(memory)s::bigint[],
            %(host_starts)s::timestamptz[], %(host_ends)s::timestamptz[]
        ) AS wanted (node_id, vcpu, memory, starts, ends)
        CROSS JOIN LATERAL (
            SELECT sum(vcpu_milli) AS vcpu, sum(memory_mib) AS memory
            FROM host_bookings
            WHERE node_id = wanted.node_id
                AND voided_at IS NULL
                AND during && tstzrange(wanted.starts, wanted.ends)
        ) AS booked
        JOIN node_resources USING (node_id)
        WHERE node_id IN (SELECT node_id FROM host_changed WHERE voided_at IS NULL)
            AND capacity < CASE resource
                WHEN 'vcpu' THEN booked.vcpu + wanted.vcpu
                WHEN 'memoryGiB' THEN booked.memory + wanted.memory
            END
    ) AS found
), told AS MATERIALIZED (
    SELECT clash.found OR crowded.found AS found FROM clash, crowded
), booked AS (
    INSERT INTO bookings (
        tenant_id, pool_id, gpu_id, reservation_id, piece, device, class, atom_id, generation,
        units, during, planned, share_num, share_den
    )
    SELECT
        tenant_id, pool_id, gpu_id, reservation_id, piece, device, class, atom_id, generation, units,
        tstzrange(starts, held_until), tstzrange(starts, ends), share_num, share_den
    FROM json_to_recordset(%(rows)s::json) AS new (
        tenant_id text, pool_id text, gpu_id int, reservation_id text, piece int, device int, class text,
        atom_id bigint, generation int, units int4multirange, starts timestamptz, ends timestamptz,
        held_until timestamptz, share_num int, share_den int
    )
    WHERE NOT (SELECT found FROM told)
)
SELECT
    pool_id, gpu_id, NULL::int AS node_id, coalesce(reservation_id, partition_id) AS holder, piece,
    units::text AS units, NULL::bigint AS vcpu_milli, NULL::bigint AS memory_mib,
    (extract(epoch FROM lower(during)) * 1000000)::bigint AS start_us,
    CASE WHEN NOT upper_inf(during) AND upper(during) < '9989-01-01Z'
        THEN (extract(epoch FROM upper(during)) * 1000000)::bigint END AS end_us,
    live
FROM changed
WHERE (SELECT found FROM told)
UNION ALL
SELECT
    nodes.pool_id, NULL, node_id, reservation_id, NULL, NULL, vcpu_milli, memory_mib,
    (extract(epoch FROM lower(during)) * 1000000)::bigint,
    CASE WHEN NOT upper_inf(during) AND upper(during) < '9989-01-01Z'
        THEN (extract(epoch FROM upper(during)) * 1000000)::bigint END,
    voided_at IS NULL AND (upper_inf(during) OR upper(during) > %(now)s)
FROM host_changed
JOIN nodes ON nodes.id = node_id
WHERE (SELECT found FROM told);

-- name: insert_those_free
-- A clash is no error here: the row is missing from the answer.
INSERT INTO bookings (
    tenant_id, pool_id, gpu_id, reservation_id, piece, device, class, atom_id, generation,
    units, during, planned, share_num, share_den
)
SELECT
    tenant_id, pool_id, gpu_id, reservation_id, piece, device, class, atom_id, generation, units,
    tstzrange(starts, held_until), tstzrange(starts, ends), share_num, share_den
FROM json_to_recordset(%(rows)s::json) AS new (
    tenant_id text, pool_id text, gpu_id int, reservation_id text, piece int, device int, class text,
    atom_id bigint, generation int, units int4multirange, starts timestamptz, ends timestamptz,
    held_until timestamptz, share_num int, share_den int
)
ON CONFLICT DO NOTHING
RETURNING reservation_id, piece;

-- name: lock_nodes
SELECT 1 FROM nodes WHERE id = ANY (%(ids)s) ORDER BY id FOR NO KEY UPDATE;

-- name: insert_host
INSERT INTO host_bookings (
    tenant_id, node_id, reservation_id, vcpu_milli, memory_mib, during
)
SELECT tenant_id, node_id, reservation_id, vcpu, memory, tstzrange(starts, ends)
FROM json_to_recordset(%(rows)s::json) AS new (
    tenant_id text, node_id int, reservation_id text, vcpu bigint, memory bigint,
    starts timestamptz, ends timestamptz
);

-- name: host_peaks
-- The most that is booked of each node at one instant of a window, and what the node has. What ends is
-- gone before what begins at the same instant arrives: windows are half-open.
WITH changes AS (
    SELECT node_id, lower(during) AS at, 1 AS kind, vcpu_milli AS vcpu, memory_mib AS memory
    FROM host_bookings
    WHERE node_id = ANY (%(ids)s) AND voided_at IS NULL AND during && tstzrange(%(start)s, %(end)s::timestamptz)
    UNION ALL
    SELECT node_id, coalesce(upper(during), 'infinity'), 0, -vcpu_milli, -memory_mib
    FROM host_bookings
    WHERE node_id = ANY (%(ids)s) AND voided_at IS NULL AND during && tstzrange(%(start)s, %(end)s::timestamptz)
), levels AS (
    SELECT
        node_id,
        sum(vcpu) OVER moment AS vcpu,
        sum(memory) OVER moment AS memory
    FROM changes
    WINDOW moment AS (PARTITION BY node_id ORDER BY at, kind ROWS UNBOUNDED PRECEDING)
)
SELECT
    levels.node_id,
    max(levels.vcpu)::bigint AS vcpu,
    max(levels.memory)::bigint AS memory,
    coalesce(max(has_vcpu.capacity), 0) AS vcpu_capacity,
    coalesce(max(has_memory.capacity), 0) AS memory_capacity
FROM levels
LEFT JOIN node_resources AS has_vcpu
    ON has_vcpu.node_id = levels.node_id AND has_vcpu.resource = 'vcpu'
LEFT JOIN node_resources AS has_memory
    ON has_memory.node_id = levels.node_id AND has_memory.resource = 'memoryGiB'
GROUP BY levels.node_id;

-- name: withdraw
-- Our own rows alone: a twin with the same key may have committed the reservation meanwhile.
DELETE FROM bookings
WHERE reservation_id = ANY (%(ids)s) AND changed_xid = pg_current_xact_id();

-- name: withdraw_host
DELETE FROM host_bookings
WHERE reservation_id = ANY (%(ids)s) AND changed_xid = pg_current_xact_id();

-- name: shorten
-- What is held after the end, for cleaning up, is held after this end too.
UPDATE bookings
SET during = tstzrange(
        lower(during), %(now)s + coalesce(upper(during) - upper(planned), '0'::interval)
    ),
    planned = tstzrange(lower(planned), %(now)s),
    changed_xid = pg_current_xact_id()
WHERE reservation_id = ANY (%(ids)s)
    AND voided_at IS NULL
    AND lower(planned) < %(now)s
    AND (upper_inf(planned) OR upper(planned) > %(now)s);

-- name: void
UPDATE bookings
SET voided_at = %(now)s, changed_xid = pg_current_xact_id()
WHERE reservation_id = ANY (%(ids)s) AND voided_at IS NULL AND lower(during) >= %(now)s;

-- name: shorten_host
UPDATE host_bookings
SET during = tstzrange(lower(during), %(now)s), changed_xid = pg_current_xact_id()
WHERE reservation_id = ANY (%(ids)s)
    AND voided_at IS NULL
    AND lower(during) < %(now)s
    AND (upper_inf(during) OR upper(during) > %(now)s);

-- name: void_host
UPDATE host_bookings
SET voided_at = %(now)s, changed_xid = pg_current_xact_id()
WHERE reservation_id = ANY (%(ids)s) AND voided_at IS NULL AND lower(during) >= %(now)s;

-- name: lift
UPDATE bookings
SET voided_at = %(now)s
FROM unnest(%(reservation_ids)s::text[], %(pieces)s::int[]) AS moved (reservation_id, piece)
WHERE (bookings.reservation_id, bookings.piece) = (moved.reservation_id, moved.piece)
    AND voided_at IS NULL
    AND lower(during) > %(now)s
RETURNING bookings.id;

-- name: put_back
UPDATE bookings
SET voided_at = NULL, units = moved.units::int4multirange, changed_xid = pg_current_xact_id()
FROM unnest(%(reservation_ids)s::text[], %(pieces)s::int[], %(units)s::text[])
    AS moved (reservation_id, piece, units)
WHERE (bookings.reservation_id, bookings.piece) = (moved.reservation_id, moved.piece)
    AND id = ANY (%(ids)s);

-- name: horizon
SELECT pg_snapshot_xmin(pg_current_snapshot())::text AS xmin;

-- name: changed
SELECT
    pool_id, gpu_id, coalesce(reservation_id, partition_id) AS holder, piece, units::text AS units,
    (extract(epoch FROM lower(during)) * 1000000)::bigint AS start_us,
    CASE WHEN NOT upper_inf(during) AND upper(during) < '9989-01-01Z'
        THEN (extract(epoch FROM upper(during)) * 1000000)::bigint END AS end_us,
    voided_at IS NULL AND (upper_inf(during) OR upper(during) > %(now)s) AS live
FROM bookings
WHERE changed_xid >= %(since)s::text::xid8 AND changed_xid <> ALL (%(own)s::text[]::xid8[]);

-- name: changed_host
SELECT
    nodes.pool_id, node_id, reservation_id AS holder, vcpu_milli, memory_mib,
    (extract(epoch FROM lower(during)) * 1000000)::bigint AS start_us,
    CASE WHEN NOT upper_inf(during) AND upper(during) < '9989-01-01Z'
        THEN (extract(epoch FROM upper(during)) * 1000000)::bigint END AS end_us,
    voided_at IS NULL AND (upper_inf(during) OR upper(during) > %(now)s) AS live
FROM host_bookings
JOIN nodes ON nodes.id = node_id
WHERE changed_xid >= %(since)s::text::xid8 AND changed_xid <> ALL (%(own)s::text[]::xid8[]);

-- name: live
SELECT
    bookings.pool_id, gpu_id, coalesce(reservation_id, partition_id) AS holder, piece,
    units::text AS units,
    (extract(epoch FROM lower(during)) * 1000000)::bigint AS start_us,
    CASE WHEN NOT upper_inf(during) AND upper(during) < '9989-01-01Z'
        THEN (extract(epoch FROM upper(during)) * 1000000)::bigint END AS end_us,
    true AS live
FROM gpus
JOIN bookings ON bookings.gpu_id = gpus.id
WHERE gpus.pool_id = %(pool_id)s AND voided_at IS NULL AND during && tstzrange(%(now)s, NULL);

-- name: live_host
SELECT
    nodes.pool_id, node_id, reservation_id AS holder, vcpu_milli, memory_mib,
    (extract(epoch FROM lower(during)) * 1000000)::bigint AS start_us,
    CASE WHEN NOT upper_inf(during) AND upper(during) < '9989-01-01Z'
        THEN (extract(epoch FROM upper(during)) * 1000000)::bigint END AS end_us,
    true AS live
FROM nodes
JOIN host_bookings ON host_bookings.node_id = nodes.id
WHERE nodes.pool_id = %(pool_id)s AND voided_at IS NULL AND during && tstzrange(%(now)s, NULL);

-- name: booked_atoms
SELECT DISTINCT atom_id
FROM bookings
JOIN atoms ON atoms.id = bookings.atom_id
WHERE atoms.id = ANY (%(ids)s)
    AND bookings.gpu_id = atoms.gpu_id
    AND voided_at IS NULL
    AND during && tstzrange(%(now)s, NULL);

-- name: of_reservations
SELECT
    bookings.reservation_id, gpus.uuid AS gpu_id, nodes.name AS node, bookings.piece, bookings.device,
    bookings.class AS cls, bookings.units::text AS units, atoms.key AS atom, bookings.share_num, bookings.share_den,
    lower(planned) AS start, upper(planned) AS end, upper(during) AS held_until,
    atoms.attributes, nodes.agent IS NOT NULL AS has_agent, assignments.state, assignments.since, assignments.reason,
    assignments.device AS instance, bound, released, in_hands, nodes.stale_since
FROM bookings
JOIN gpus ON gpus.id = bookings.gpu_id
JOIN nodes ON nodes.id = gpus.node_id
LEFT JOIN atoms ON atoms.id = bookings.atom_id
LEFT JOIN assignments ON booking_id = bookings.id
WHERE bookings.reservation_id = ANY (%(ids)s) AND voided_at IS NULL
ORDER BY bookings.reservation_id, bookings.piece;

-- name: places_of
-- Where reservations lie: GPUs, and nodes whose host they take of.
SELECT reservation_id, gpu_id, NULL::int AS node_id
FROM bookings
WHERE reservation_id = ANY (%(ids)s) AND voided_at IS NULL
UNION
SELECT reservation_id, NULL, node_id
FROM host_bookings
WHERE reservation_id = ANY (%(ids)s) AND voided_at IS NULL;

-- name: pieces_of
SELECT reservation_id, gpu_id, units::text AS units, atom_id
FROM bookings
WHERE reservation_id = ANY (%(ids)s) AND voided_at IS NULL
ORDER BY reservation_id, piece;

-- name: usage
-- Exact: whole microseconds, summed as integers.
SELECT
    pool_id, class, share_num, share_den,
    sum(
        (
            extract(epoch FROM least(coalesce(upper(planned), 'infinity'), %(end)s::timestamptz))
            - extract(epoch FROM greatest(lower(planned), %(start)s::timestamptz))
        ) * 1000000
    )::bigint AS microseconds
FROM bookings
WHERE tenant_id = %(tenant_id)s
    AND voided_at IS NULL
    AND reservation_id IS NOT NULL
    AND upper(planned) > %(start)s
    AND lower(planned) < %(end)s
GROUP BY pool_id, class, share_num, share_den
ORDER BY pool_id, class, share_num, share_den;

-- name: unheard_usage
-- What of the same is on nodes that were not heard of for a part of it: nobody knows whether it was used.
SELECT
    bookings.pool_id, min(stale_since) AS since, count(DISTINCT nodes.id)::int AS nodes,
    count(DISTINCT gpus.id)::int AS gpus
FROM bookings
JOIN gpus ON gpus.id = gpu_id
JOIN nodes ON nodes.id = gpus.node_id
WHERE bookings.tenant_id = %(tenant_id)s
    AND voided_at IS NULL
    AND reservation_id IS NOT NULL
    AND upper(planned) > greatest(stale_since, %(start)s)
    AND lower(planned) < %(end)s
    AND stale_since < %(end)s
GROUP BY bookings.pool_id
ORDER BY bookings.pool_id;

-- name: allocated
SELECT pool_id, share_num, share_den, count(*)::int AS count
FROM bookings
WHERE tenant_id = %(tenant_id)s
    AND voided_at IS NULL
    AND reservation_id IS NOT NULL
    AND upper(planned) > %(now)s
    AND lower(planned) <= %(now)s
GROUP BY pool_id, share_num, share_den;

-- name: held_in_pool
SELECT
    count(*)::int AS bookings, count(DISTINCT gpu_id)::int AS gpus,
    CASE WHEN NOT bool_or(upper_inf(during) OR upper(during) >= '9989-01-01Z') THEN max(upper(during)) END
        AS free_from
FROM gpus
JOIN bookings ON bookings.gpu_id = gpus.id
WHERE gpus.pool_id = %(pool_id)s AND voided_at IS NULL AND during && tstzrange(%(now)s, NULL);

-- name: hold_gpus_of
-- The GPUs that a reservation has; whether they can be booked as they were cut for it.
SELECT
    id, uuid, split, ruler,
    present AND unbookable_reason IS NULL AND NOT EXISTS (
        SELECT FROM bookings
        WHERE gpu_id = gpus.id AND reservation_id = %(id)s AND generation <> layout_generation
    ) AS bookable
FROM gpus
WHERE id IN (SELECT gpu_id FROM bookings WHERE reservation_id = %(id)s AND voided_at IS NULL)
ORDER BY id
FOR NO KEY UPDATE;

-- name: on_gpus
SELECT
    pool_id, gpu_id, coalesce(reservation_id, partition_id) AS holder, piece, units::text AS units,
    (extract(epoch FROM lower(during)) * 1000000)::bigint AS start_us,
    CASE WHEN NOT upper_inf(during) AND upper(during) < '9989-01-01Z'
        THEN (extract(epoch FROM upper(during)) * 1000000)::bigint END AS end_us,
    true AS live
FROM bookings
WHERE gpu_id = ANY (%(gpus)s) AND voided_at IS NULL AND during && tstzrange(%(now)s, NULL)
ORDER BY id;

-- name: lock_nodes_of
SELECT id FROM nodes
WHERE id IN (SELECT node_id FROM host_bookings WHERE reservation_id = %(id)s AND voided_at IS NULL)
ORDER BY id
FOR NO KEY UPDATE;

-- name: end_at
-- What is held after the end, for cleaning up, is held after this end too; the calendar has a last day.
UPDATE bookings
SET during = tstzrange(
        lower(during),
        least(
            %(end)s + coalesce(upper(during) - upper(planned), '0'::interval),
            '9999-12-31T23:59:59.999999Z'
        )
    ),
    planned = tstzrange(lower(planned), %(end)s),
    changed_xid = pg_current_xact_id()
WHERE reservation_id = %(id)s AND voided_at IS NULL;

-- name: give_up
-- Pieces that no node has handed out, on units that somebody is on whose own window was over before theirs
-- began. They are taken back as from their beginning: nobody has had them but who is there.
UPDATE bookings
SET voided_at = lower(during), changed_xid = pg_current_xact_id()
WHERE id IN (
    SELECT mine.id
    FROM assignments AS stays
    JOIN nodes ON nodes.id = stays.node_id AND revoked_at IS NULL
    JOIN bookings AS kept ON kept.id = stays.booking_id
    JOIN bookings AS mine
        ON mine.gpu_id = kept.gpu_id
        AND mine.units && kept.units
        AND lower(mine.planned) >= upper(kept.planned)
    LEFT JOIN assignments AS own ON own.booking_id = mine.id
    WHERE stays.in_hands
        AND stays.state = 'withdrawn'
        AND mine.reservation_id = ANY (%(ids)s)
        AND mine.voided_at IS NULL
        AND own.bound IS NULL
)
RETURNING reservation_id;

-- name: put_off
UPDATE bookings
SET during = tstzrange(until, upper(during)),
    planned = tstzrange(until, upper(planned)),
    changed_xid = pg_current_xact_id()
FROM unnest(%(ids)s::text[], %(until)s::timestamptz[]) AS new (id, until)
WHERE reservation_id = new.id AND voided_at IS NULL;

-- name: put_off_host
UPDATE host_bookings
SET during = tstzrange(until, upper(during)), changed_xid = pg_current_xact_id()
FROM unnest(%(ids)s::text[], %(until)s::timestamptz[]) AS new (id, until)
WHERE reservation_id = new.id AND voided_at IS NULL;

-- name: lock_gpus_of_reservations
SELECT 1 FROM gpus
WHERE id IN (SELECT gpu_id FROM bookings WHERE reservation_id = ANY (%(ids)s) AND voided_at IS NULL)
ORDER BY id
FOR NO KEY UPDATE;

-- name: lock_gpus_of_bookings
SELECT 1 FROM gpus
WHERE id IN (SELECT gpu_id FROM bookings WHERE id = ANY (%(ids)s))
ORDER BY id
FOR NO KEY UPDATE;

-- name: hold_over
-- What is planned, and billed, stays as it is; longer only as far as nobody else has the units.
UPDATE bookings
SET during = tstzrange(lower(during), stay.until),
    due_back = coalesce(due_back, upper(during)),
    changed_xid = pg_current_xact_id()
FROM (
    SELECT
        mine.id,
        least(
            %(until)s,
            (
                SELECT min(lower(others.during)) FROM bookings AS others
                WHERE others.gpu_id = mine.gpu_id
                    AND others.id <> mine.id
                    AND others.units && mine.units
                    AND others.voided_at IS NULL
                    AND others.during && tstzrange(upper(mine.during), %(until)s)
            )
        ) AS until
    FROM bookings AS mine
    WHERE mine.id = ANY (%(ids)s) AND mine.voided_at IS NULL AND upper(mine.during) < %(until)s
) AS stay
WHERE bookings.id = stay.id AND stay.until > upper(during);

-- name: let_go
UPDATE bookings
SET during = tstzrange(lower(during), greatest(%(now)s, due_back)), changed_xid = pg_current_xact_id()
WHERE id = ANY (%(ids)s)
    AND voided_at IS NULL
    AND due_back IS NOT NULL
    AND upper(during) > greatest(%(now)s, due_back);

-- name: end_host_at
UPDATE host_bookings
SET during = tstzrange(lower(during), %(end)s), changed_xid = pg_current_xact_id()
WHERE reservation_id = %(id)s AND voided_at IS NULL;

-- name: host_full_from
-- The first instant of a window at which more is booked of one of some nodes than it has. What ends is
-- gone before what begins at the same instant arrives: windows are half-open.
WITH changes AS (
    SELECT node_id, lower(during) AS at, 1 AS kind, vcpu_milli AS vcpu, memory_mib AS memory
    FROM host_bookings
    WHERE node_id = ANY (%(nodes)s) AND voided_at IS NULL
        AND during && tstzrange(%(start)s, %(end)s)
    UNION ALL
    SELECT node_id, coalesce(upper(during), 'infinity'), 0, -vcpu_milli, -memory_mib
    FROM host_bookings
    WHERE node_id = ANY (%(nodes)s) AND voided_at IS NULL
        AND during && tstzrange(%(start)s, %(end)s)
), levels AS (
    SELECT
        node_id,
        at,
        lead(at, 1, 'infinity') OVER moment AS until,
        sum(vcpu) OVER moment AS vcpu,
        sum(memory) OVER moment AS memory
    FROM changes
    WINDOW moment AS (PARTITION BY node_id ORDER BY at, kind ROWS UNBOUNDED PRECEDING)
), capacities AS (
    SELECT
        node_id,
        max(capacity) FILTER (WHERE resource = 'vcpu') AS vcpu,
        max(capacity) FILTER (WHERE resource = 'memoryGiB') AS memory
    FROM node_resources
    WHERE node_id = ANY (%(nodes)s)
    GROUP BY node_id
)
SELECT min(greatest(levels.at, %(start)s)) AS full_from
FROM levels
LEFT JOIN capacities USING (node_id)
WHERE (levels.vcpu > coalesce(capacities.vcpu, 0) OR levels.memory > coalesce(capacities.memory, 0))
    AND levels.until > greatest(levels.at, %(start)s)
    AND levels.at < %(end)s;

-- name: hold_gpu
SELECT id AS gpu_id, tenant_id, pool_id, layout_generation AS generation
FROM gpus
WHERE uuid = %(uuid)s
FOR NO KEY UPDATE;

-- name: insert_partition
-- A clash is no error here: there is no row in the answer.
INSERT INTO bookings (
    tenant_id, pool_id, gpu_id, partition_id, piece, device, class, generation, units, during, planned,
    share_num, share_den
)
VALUES (
    %(tenant_id)s, %(pool_id)s, %(gpu_id)s, %(partition_id)s, 0, 0, 'partition', %(generation)s,
    '{[0,)}', tstzrange(%(start)s, %(end)s::timestamptz), tstzrange(%(start)s, %(end)s::timestamptz), 0, 1
)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: find_partition
SELECT 1 FROM bookings WHERE id = %(id)s AND partition_id IS NOT NULL;

-- name: release_partition
UPDATE bookings
SET during = CASE WHEN lower(during) < %(now)s THEN tstzrange(lower(during), %(now)s) ELSE during END,
    planned = CASE WHEN lower(during) < %(now)s THEN tstzrange(lower(planned), %(now)s) ELSE planned END,
    voided_at = CASE WHEN lower(during) >= %(now)s THEN %(now)s::timestamptz END,
    changed_xid = pg_current_xact_id()
WHERE id = %(id)s
    AND voided_at IS NULL
    AND (upper_inf(during) OR upper(during) > %(now)s)
RETURNING id;

-- name: live_on
-- The calendar's last day is how a window without an end may be written, too.
SELECT
    id, gpu_id, coalesce(reservation_id, partition_id) AS holder, lower(during) AS start,
    CASE WHEN upper(during) < '9999-12-31' THEN upper(during) END AS end
FROM bookings
WHERE gpu_id = ANY (%(gpus)s) AND voided_at IS NULL AND during && tstzrange(%(since)s, NULL)
ORDER BY gpu_id, lower(during), id;

-- name: calendar
-- The constraint's own index finds them. A window without an end has none.
SELECT
    reservation_id, units::text AS units, lower(planned) AS start,
    CASE WHEN upper(planned) < '9999-12-31' THEN upper(planned) END AS end,
    CASE WHEN upper(during) < '9999-12-31' THEN upper(during) END AS held_until
FROM bookings
WHERE gpu_id = (SELECT id FROM gpus WHERE uuid = %(gpu_id)s)
    AND voided_at IS NULL
    AND during && tstzrange(%(start)s, %(end)s)
ORDER BY lower(planned), bookings.id
LIMIT %(limit)s;
