-- name: insert
INSERT INTO reservations (
    id, tenant_id, caller, name, pool_id, candidates, state, reason, devices, vcpu_milli, memory_mib,
    asked_start, asked_end, duration, starts_at, ends_at, pending_until, charges,
    charged_tenant_id, request_hash, created_at, placement, members, end_before, open_ended,
    series_id, priority, waits_for, reserve_at, fails_at, updated_at, tell_end_at,
    topology
)
SELECT
    id, tenant_id, caller, name, pool_id, candidates, state, reason, devices, vcpu_milli, memory_mib,
    asked_start, asked_end, duration, starts_at, ends_at, pending_until, charges,
    charged_tenant_id, request_hash, created_at, placement, members, end_before, open_ended,
    series_id, priority, waits_for, reserve_at,
    least(pending_until, coalesce(end_before - duration, asked_start)), updated_at,
    tell_end_at, topology
FROM json_to_recordset(%(rows)s::json) AS new (
    id text, tenant_id text, caller text, name text, pool_id text, candidates text[], state text,
    reason jsonb, devices jsonb, vcpu_milli bigint, memory_mib bigint, asked_start timestamptz,
    asked_end timestamptz, duration interval, starts_at timestamptz, ends_at timestamptz,
    pending_until timestamptz, charges jsonb, charged_tenant_id text,
    request_hash bytea, created_at timestamptz, placement jsonb, members integer,
    end_before timestamptz, open_ended boolean, series_id text, priority integer, waits_for text[],
    reserve_at timestamptz, updated_at timestamptz, tell_end_at timestamptz, topology jsonb
);

-- name: insert_series
INSERT INTO series (id, tenant_id, name, recurrence, request_hash, created_at)
VALUES (%(id)s, %(tenant_id)s, %(name)s, %(recurrence)s, %(request_hash)s, %(now)s)
ON CONFLICT (id) DO NOTHING
RETURNING id;

-- name: find_series
SELECT * FROM series WHERE tenant_id = %(tenant_id)s AND id = %(id)s;

-- name: hash_of_series
SELECT request_hash FROM series WHERE id = %(id)s;

-- name: list_series
-- Newest first, from a position on. Live is one of which something has not ended.
SELECT id, tenant_id, name, recurrence, created_at
FROM series
WHERE tenant_id = %(tenant_id)s
    AND (created_at, id) < (%(before)s::timestamptz, %(before_id)s)
    AND (%(name)s::text IS NULL OR name = %(name)s)
    AND (%(live)s::boolean IS NULL OR %(live)s = EXISTS (
        SELECT FROM reservations
        WHERE reservations.tenant_id = series.tenant_id
            AND series_id = series.id
            AND state IN ('pending', 'placed', 'active', 'ending')
    ))
ORDER BY created_at DESC, id DESC
LIMIT %(limit)s;

-- name: states_of_series
SELECT series_id, state, count(*)::int AS count
FROM reservations
WHERE tenant_id = %(tenant_id)s AND series_id = ANY (%(ids)s)
GROUP BY series_id, state;

-- name: charged_of_series
SELECT each.key AS resource, sum(each.value::numeric) AS amount
FROM reservations CROSS JOIN LATERAL jsonb_each_text(charges) AS each
WHERE tenant_id = %(tenant_id)s AND series_id = %(series_id)s
    AND pool_id = %(pool_id)s AND charged_tenant_id = %(charged_tenant_id)s
    AND state IN ('placed', 'active', 'ending')
GROUP BY each.key;

-- name: of_series
-- Their ids are in the order of their windows, and they were created at one instant; but for those
-- as which one that was moved goes on, which came later.
SELECT *
FROM reservations
WHERE tenant_id = %(tenant_id)s AND series_id = %(id)s
    AND (created_at, id) > (%(created_at)s::timestamptz, %(after)s)
ORDER BY created_at, id
LIMIT %(limit)s;

-- name: lock_series
SELECT *
FROM reservations
WHERE tenant_id = %(tenant_id)s AND series_id = %(id)s
    AND state IN ('pending', 'placed', 'active', 'ending')
ORDER BY id
FOR NO KEY UPDATE;

-- name: lock_heir
-- The next of a series that lives on the same quota.
SELECT id, charges
FROM reservations
WHERE tenant_id = %(tenant_id)s AND series_id = %(series_id)s
    AND pool_id = %(pool_id)s AND charged_tenant_id = %(charged_tenant_id)s
    AND state IN ('placed', 'active', 'ending')
ORDER BY created_at, id
LIMIT 1
FOR NO KEY UPDATE;

-- name: set_charges
UPDATE reservations SET charges = %(charges)s WHERE id = %(id)s;

-- name: series_goes_on
SELECT min(starts_at) AS at
FROM reservations
WHERE tenant_id = %(tenant_id)s AND series_id = %(series_id)s
    AND state IN ('placed', 'active', 'ending') AND starts_at >= %(end)s;

-- name: existing
SELECT id FROM reservations WHERE id = ANY (%(ids)s);

-- name: hashes
SELECT id, request_hash FROM reservations WHERE id = ANY (%(ids)s);

-- name: find_many
SELECT * FROM reservations WHERE tenant_id = %(tenant_id)s AND id = ANY (%(ids)s);

-- name: lock_pending
-- What another process is placing now is left to it.
SELECT id FROM reservations
WHERE id = ANY (%(ids)s) AND state = 'pending'
ORDER BY id
FOR NO KEY UPDATE SKIP LOCKED;

-- name: place_pending
UPDATE reservations
SET state = new.state,
    reason = new.reason,
    pool_id = new.pool_id,
    starts_at = new.starts,
    ends_at = new.ends,
    tell_end_at = new.told,
    charges = new.charges,
    charged_tenant_id = new.charged,
    reserved_start = new.reserved,
    -- What changed while a start was reserved is looked at once more: it may make it sooner.
    waits_xid = CASE WHEN new.reserved THEN pg_current_xact_id() ELSE waits_xid END,
    topology = new.topology,
    updated_at = %(now)s
FROM json_to_recordset(%(rows)s::json) AS new (
    id text, pool_id text, state text, reason jsonb, starts timestamptz, ends timestamptz,
    told timestamptz, charges jsonb, charged text, reserved boolean, topology jsonb
)
WHERE reservations.id = new.id;

-- name: to_reserve
-- Who has waited long enough for a start in the future.
SELECT *
FROM reservations
WHERE state = 'pending' AND reserve_at <= %(now)s AND pending_until > %(now)s
ORDER BY reserve_at, priority DESC, created_at, id
LIMIT %(limit)s;

-- name: lock_reserved
-- What begins just now, or is changed or ended by somebody, is left to them.
SELECT *
FROM reservations
WHERE id = ANY (%(ids)s) AND state = 'placed' AND reserved_start AND starts_at > %(now)s
ORDER BY id
FOR NO KEY UPDATE SKIP LOCKED;

-- name: reserved
-- What was put off counts for none of them: it had its start without waiting.
SELECT pool_id, count(*) AS count, min(starts_at) AS next
FROM reservations
WHERE state = 'placed' AND reserved_start AND starts_at > %(now)s AND delayed_from IS NULL
GROUP BY pool_id;

-- name: put_off
UPDATE reservations
SET reserve_at = new.until
FROM unnest(%(ids)s::text[], %(until)s::timestamptz[]) AS new (id, until)
WHERE reservations.id = new.id AND state = 'pending';

-- name: keep_pending
-- It waits anew: what changed while that was decided is looked at once more.
UPDATE reservations
SET reason = new.reason,
    waits_for = new.waits_for,
    waits_xid = pg_current_xact_id(),
    updated_at = %(now)s
FROM json_to_recordset(%(rows)s::json) AS new (id text, reason jsonb, waits_for text[])
WHERE reservations.id = new.id;

-- name: note_reasons
INSERT INTO reservation_reasons (reservation_id, tenant_id, since, reason)
SELECT id, tenant_id, %(now)s, reason
FROM json_to_recordset(%(rows)s::json) AS new (id text, tenant_id text, reason jsonb)
ON CONFLICT (reservation_id, since) DO UPDATE SET reason = excluded.reason;

-- name: forget_reasons
-- The first one stays, and the last ones.
DELETE FROM reservation_reasons
USING (
    SELECT reservation_id, since,
        row_number() OVER (PARTITION BY reservation_id ORDER BY since) AS number,
        row_number() OVER (PARTITION BY reservation_id ORDER BY since DESC) AS back
    FROM reservation_reasons
    WHERE reservation_id = ANY (%(ids)s)
) AS old
WHERE (reservation_reasons.reservation_id, reservation_reasons.since)
        = (old.reservation_id, old.since)
    AND old.number > 1 AND old.back >= %(most)s;

-- name: reasons
SELECT since, reason
FROM reservation_reasons
WHERE reservation_id = %(id)s
ORDER BY since;

-- name: fail_pending
UPDATE reservations
SET state = 'failed', reason = new.reason, updated_at = %(now)s
FROM unnest(%(ids)s::text[], %(reasons)s::jsonb[]) AS new (id, reason)
WHERE reservations.id = new.id;

-- name: find
SELECT * FROM reservations WHERE tenant_id = %(tenant_id)s AND id = %(id)s;

-- name: lock
SELECT * FROM reservations WHERE tenant_id = %(tenant_id)s AND id = %(id)s FOR NO KEY UPDATE;

-- name: list
-- Newest first, from a position on; the first page is the one before infinity, so that the position
-- always bounds the index.
SELECT *
FROM reservations
WHERE tenant_id = %(tenant_id)s
    AND (created_at, id) < (%(before)s::timestamptz, %(before_id)s)
    AND (%(pool_id)s::text IS NULL OR pool_id = %(pool_id)s)
    AND (%(states)s::text[] IS NULL OR state = ANY (%(states)s))
    AND (%(name)s::text IS NULL OR name = %(name)s)
ORDER BY created_at DESC, id DESC
LIMIT %(limit)s;

-- name: standing
SELECT
    state, pool_id, CASE WHEN state = 'pending' THEN reason ->> 'code' END AS code,
    count(*)::int AS count
FROM reservations
WHERE tenant_id = %(tenant_id)s AND state IN ('pending', 'placed', 'active', 'ending')
GROUP BY 1, 2, 3;

-- name: uses
-- Live reservations that take some of a quota, by id.
SELECT id, name, tenant_id, state, (charges ->> %(resource)s::text)::numeric AS amount,
    starts_at AS start, CASE WHEN NOT open_ended THEN ends_at END AS end
FROM reservations
WHERE pool_id = %(pool_id)s
    AND charged_tenant_id = %(tenant_id)s
    AND state IN ('placed', 'active', 'ending')
    AND charges ? %(resource)s::text
    AND id > %(after)s
ORDER BY id
LIMIT %(limit)s;

-- name: accounted
SELECT coalesce(sum((charges ->> %(resource)s::text)::numeric), 0) AS amount
FROM reservations
WHERE pool_id = %(pool_id)s
    AND charged_tenant_id = %(tenant_id)s
    AND state IN ('placed', 'active', 'ending');

-- name: line
-- Who waits from a place in the line on, and for what changed: for room, or for a sooner start than
-- the one that is reserved for it. Who waited too long is about to fail.
SELECT *
FROM (
    (
        SELECT *
        FROM reservations
        WHERE state = 'pending'
            AND priority <= %(priority)s
            AND (priority < %(priority)s OR (created_at, id) > (%(created)s, %(after)s))
            AND pending_until > %(now)s
            AND coalesce(end_before - duration, asked_start, %(now)s) >= %(now)s
            AND (
                waits_for && %(topics)s::text[]
                OR candidates && %(pools)s::text[]
                OR waits_xid >= %(since)s::text::xid8
            )
        ORDER BY priority DESC, created_at, id
        LIMIT %(limit)s
    )
    UNION ALL
    SELECT *
    FROM reservations
    WHERE state = 'placed'
        AND reserved_start
        AND starts_at > %(now)s
        AND priority <= %(priority)s
        AND (priority < %(priority)s OR (created_at, id) > (%(created)s, %(after)s))
        AND (
            waits_for && %(topics)s::text[]
            OR candidates && %(pools)s::text[]
            OR waits_xid >= %(since)s::text::xid8
        )
) AS waiting
ORDER BY priority DESC, created_at, id
LIMIT %(limit)s;

-- name: began_waiting
-- In the order of the index: where there are none, no row is read, whatever the statistics say.
(
    SELECT 1
    FROM reservations
    WHERE state = 'pending' AND waits_xid >= %(since)s::text::xid8
    ORDER BY waits_xid
    LIMIT 1
)
UNION ALL
(
    SELECT 1
    FROM reservations
    WHERE state = 'placed' AND reserved_start AND waits_xid >= %(since)s::text::xid8
    ORDER BY waits_xid
    LIMIT 1
);

-- name: asked_of
SELECT DISTINCT tenant_id, candidates
FROM reservations
WHERE state = 'pending' AND candidates && %(pools)s::text[];

-- name: reprioritize
UPDATE reservations
SET priority = changed.priority
FROM (
    SELECT reservations.id, new.priority
    FROM json_to_recordset(%(rows)s::json)
        AS new (tenant_id text, candidates text[], priority integer)
    JOIN reservations USING (tenant_id, candidates)
    WHERE state = 'pending' AND reservations.priority <> new.priority
    ORDER BY reservations.id
    FOR NO KEY UPDATE OF reservations
) AS changed
WHERE reservations.id = changed.id AND state = 'pending';

-- name: to_ask
-- Whose window has begun on nodes that follow their spec, which are not asked for all that they have.
SELECT id
FROM reservations
WHERE state = 'placed' AND starts_at <= %(now)s AND ends_at > %(now)s
    AND EXISTS (
        SELECT FROM bookings
        JOIN gpus ON gpus.id = bookings.gpu_id
        JOIN nodes ON nodes.id = gpus.node_id AND nodes.agent IS NOT NULL
        JOIN pools ON pools.id = nodes.pool_id AND pools.agent <> 'none'
        LEFT JOIN assignments ON booking_id = bookings.id
        WHERE bookings.reservation_id = reservations.id AND voided_at IS NULL AND booking_id IS NULL
    )
ORDER BY starts_at
LIMIT %(limit)s
FOR NO KEY UPDATE SKIP LOCKED;

-- name: in_the_way
-- Whose window has begun on units that somebody is on whose own is over, by piece, and by which booking;
-- held_by is told to who is of the same tenant. What has been handed out in part has begun, and stays: and
-- beside it nothing is put off, because who is there could not be kept.
WITH stays AS MATERIALIZED (
    SELECT bookings.*, nodes.name AS node
    FROM assignments
    JOIN nodes ON nodes.id = node_id AND revoked_at IS NULL
    JOIN bookings ON bookings.id = booking_id
    WHERE in_hands AND assignments.state = 'withdrawn' AND upper(during) <= %(now)s AND voided_at IS NULL
), way AS (
    SELECT
        stays.id AS booking_id, stays.node, next.reservation_id, next.piece, next.gpu_id,
        CASE WHEN stays.tenant_id = next.tenant_id THEN stays.reservation_id END AS held_by,
        coalesce(state = 'placed' AND starts_at <= %(now)s AND ends_at > %(now)s, false) AND NOT EXISTS (
            SELECT FROM assignments
            WHERE assignments.reservation_id = next.reservation_id AND assignments.in_hands
        ) AS can_wait
    FROM stays
    JOIN bookings AS next
        ON next.gpu_id = stays.gpu_id
        AND next.units && stays.units
        AND next.during && tstzrange(upper(stays.during), %(now)s, '[]')
        AND next.id <> stays.id
        AND next.voided_at IS NULL
    LEFT JOIN reservations ON reservations.id = next.reservation_id
)
SELECT reservation_id, piece, uuid AS gpu_id, node, booking_id, held_by
FROM way
JOIN gpus ON gpus.id = gpu_id
WHERE can_wait
    AND booking_id NOT IN (SELECT booking_id FROM way WHERE NOT can_wait)
    AND (%(ids)s::text[] IS NULL OR reservation_id = ANY (%(ids)s))
ORDER BY reservation_id, piece, booking_id;

-- name: lock_begun
SELECT *
FROM reservations
WHERE id = ANY (%(ids)s) AND state = 'placed' AND starts_at <= %(now)s AND ends_at > %(now)s
ORDER BY id
FOR NO KEY UPDATE;

-- name: delay
-- It waits anew for what could let it begin, and keeps when it was to.
UPDATE reservations
SET starts_at = new.starts,
    delayed_from = coalesce(delayed_from, starts_at),
    reserved_start = true,
    waits_for = new.waits_for,
    waits_xid = pg_current_xact_id(),
    reason = new.reason,
    updated_at = %(now)s
FROM json_to_recordset(%(rows)s::json)
    AS new (id text, starts timestamptz, waits_for text[], reason jsonb)
WHERE reservations.id = new.id
RETURNING reservations.*;

-- name: next_end
SELECT min(ends_at) AS at FROM reservations WHERE state IN ('placed', 'active');

-- name: due_to_start
-- Where a node follows its spec, when its reports have shown all that it was asked for.
UPDATE reservations
SET state = 'active',
    reason = jsonb_build_object('code', 'started', 'message', 'its window has begun'),
    updated_at = %(now)s
WHERE id IN (
    SELECT id FROM reservations
    WHERE state = 'placed' AND starts_at <= %(now)s AND ends_at > %(now)s
        AND NOT EXISTS (
            SELECT FROM bookings
            JOIN gpus ON gpus.id = bookings.gpu_id
            JOIN nodes ON nodes.id = gpus.node_id AND nodes.agent IS NOT NULL
            JOIN pools ON pools.id = nodes.pool_id AND pools.agent <> 'none'
            LEFT JOIN assignments ON booking_id = bookings.id
            WHERE bookings.reservation_id = reservations.id AND voided_at IS NULL
                AND coalesce(assignments.state, 'asked') <> 'ready'
        )
    ORDER BY starts_at
    LIMIT %(limit)s
    FOR NO KEY UPDATE SKIP LOCKED
)
RETURNING id, 'placed' AS was, tenant_id, pool_id;

-- name: due_to_end
SELECT *
FROM reservations
WHERE state IN ('placed', 'active') AND ends_at <= %(now)s
ORDER BY ends_at
LIMIT %(limit)s
FOR NO KEY UPDATE SKIP LOCKED;

-- name: never_given
-- Of some whose windows are over those of which no node has handed out anything, and that were put off or
-- had to give something up.
SELECT id
FROM reservations
WHERE id = ANY (%(ids)s)
    AND state = 'placed'
    AND ((reserved_start AND delayed_from IS NOT NULL) OR id = ANY (%(gave_up)s))
    AND NOT EXISTS (SELECT FROM assignments WHERE reservation_id = reservations.id AND bound IS NOT NULL);

-- name: given_back
-- Those that are ending, and nobody is on what they had.
SELECT *
FROM reservations
WHERE state = 'ending'
    AND NOT EXISTS (
        SELECT FROM assignments
        JOIN nodes ON nodes.id = node_id
        WHERE reservation_id = reservations.id AND in_hands AND revoked_at IS NULL
    )
ORDER BY id
LIMIT %(limit)s
FOR NO KEY UPDATE SKIP LOCKED;

-- name: due_to_tell
-- Those that end soon, once for each end: one that is moved is told of anew.
UPDATE reservations
SET tell_end_at = NULL
WHERE id IN (
    SELECT id FROM reservations
    WHERE state IN ('placed', 'active') AND tell_end_at <= %(now)s
        AND starts_at <= %(now)s AND ends_at > %(now)s
    ORDER BY tell_end_at
    LIMIT %(limit)s
    FOR NO KEY UPDATE SKIP LOCKED
)
RETURNING id, tenant_id, pool_id, ends_at;

-- name: due_to_fail
-- Waited as long as the pool allows, or the last start that was asked for has passed without room.
UPDATE reservations
SET state = 'failed',
    reason = jsonb_build_object(
        'code', 'PendingTimeout',
        'message', CASE WHEN end_before - duration < %(now)s
            THEN 'no room was found, and it can no longer be over in time; last: '
            ELSE 'no room was found in time; last: '
        END || coalesce(reason ->> 'message', ''),
        'last', reason
    ),
    updated_at = %(now)s
WHERE id IN (
    SELECT id FROM reservations
    WHERE state = 'pending' AND fails_at <= %(now)s AND (
        pending_until <= %(now)s OR coalesce(end_before - duration, asked_start) < %(now)s
    )
    ORDER BY created_at, id
    LIMIT %(limit)s
    FOR NO KEY UPDATE SKIP LOCKED
)
RETURNING id, 'pending' AS was, tenant_id, reason;

-- name: set_topology
UPDATE reservations
SET topology = new.topology, updated_at = %(now)s
FROM json_to_recordset(%(rows)s::json) AS new (id text, topology jsonb)
WHERE reservations.id = new.id;

-- name: end
UPDATE reservations
SET state = new.state,
    reason = new.reason,
    ends_at = CASE WHEN starts_at IS NOT NULL THEN least(ends_at, greatest(starts_at, %(now)s)) END,
    updated_at = %(now)s
FROM unnest(%(ids)s::text[], %(states)s::text[], %(reasons)s::jsonb[]) AS new (id, state, reason)
WHERE reservations.id = new.id
RETURNING reservations.id, ends_at;

-- name: settle
-- Why it ended stays as it is.
UPDATE reservations
SET state = 'ended', updated_at = %(now)s
WHERE id = ANY (%(ids)s)
RETURNING id, reason;

-- name: end_at
UPDATE reservations
-- One without an end has a length from now on.
SET duration = CASE WHEN open_ended THEN %(end)s - starts_at ELSE duration END,
    open_ended = false,
    ends_at = %(end)s, tell_end_at = %(tell_at)s, updated_at = %(now)s
WHERE id = %(id)s;

-- name: lock_unended
-- What a tenant has, or waits for.
SELECT *
FROM reservations
WHERE tenant_id = %(tenant_id)s AND state IN ('pending', 'placed', 'active', 'ending')
ORDER BY id
FOR NO KEY UPDATE;

-- name: waiting_for_pool
SELECT *
FROM reservations
WHERE state = 'pending' AND %(pool_id)s = ANY (candidates)
ORDER BY created_at, id
LIMIT %(limit)s;

-- name: movable
-- What may lie elsewhere in a pool, those that begin last.
SELECT *
FROM reservations
WHERE pool_id = %(pool_id)s
    AND state IN ('placed', 'active')
    AND ends_at > %(now)s
    AND NOT open_ended
    AND members = 1
    AND jsonb_array_length(devices) > 0
    AND (starts_at > %(now)s OR placement ? 'movable')
ORDER BY starts_at DESC, id
LIMIT %(limit)s;

-- name: to_make_room_for
SELECT *
FROM reservations
WHERE state = 'pending'
    AND %(pool_id)s = ANY (candidates)
    AND (%(ids)s::text[] IS NULL OR id = ANY (%(ids)s))
    AND pending_until > %(now)s
    AND members = 1
ORDER BY priority DESC, created_at, id
LIMIT %(limit)s;

-- name: lock_live
SELECT *
FROM reservations
WHERE id = ANY (%(ids)s) AND state IN ('placed', 'active')
ORDER BY id
FOR NO KEY UPDATE;

-- name: names_seen
-- Of some reservations those of a tenant, of those below it, and those in its pools.
SELECT reservations.id, reservations.name
FROM reservations
JOIN tenants ON tenants.id = reservations.tenant_id
LEFT JOIN pools ON pools.id = reservations.pool_id
WHERE reservations.id = ANY (%(ids)s)
    AND (%(tenant_id)s = ANY (tenants.ancestors) OR pools.tenant_id = %(tenant_id)s);
