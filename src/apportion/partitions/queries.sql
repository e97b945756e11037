-- name: freeze
-- Every node of a pool, or one that is pinned or was, stays as it is cut, with the new cut pending. One that is scheduled or granted goes
-- on as it was, and one that is cut so already is left alone. A node without a row is cut as its pool was.
INSERT INTO node_layouts AS there (
    node_id, tenant_id, pool_id, state, granted, pending, since, reason
)
SELECT
    nodes.id, pools.tenant_id, pools.id, 'pending', %(before)s::jsonb, %(after)s::jsonb, %(now)s,
    %(reason)s::jsonb
FROM nodes
JOIN pools ON pools.id = nodes.pool_id
LEFT JOIN node_layouts ON node_id = nodes.id
WHERE pools.id = %(pool_id)s
    AND CASE WHEN %(node)s::int IS NULL THEN coalesce(own_layout, pinned_layout) IS NULL ELSE nodes.id = %(node)s END
    AND coalesce(granted, %(before)s::jsonb) <> %(after)s::jsonb
ORDER BY nodes.id
ON CONFLICT (node_id) DO UPDATE SET
    state = CASE WHEN there.state IN ('scheduled', 'granted') THEN there.state ELSE 'pending' END,
    pending = excluded.pending,
    since = CASE WHEN there.state IN ('scheduled', 'granted') THEN there.since ELSE excluded.since END,
    reason = CASE WHEN there.state IN ('scheduled', 'granted') THEN there.reason ELSE excluded.reason END,
    version = there.version + 1
WHERE there.pending IS DISTINCT FROM excluded.pending
RETURNING
    there.tenant_id, there.pool_id, there.state, there.granted, there.pending,
    (SELECT uid FROM nodes WHERE id = there.node_id), (SELECT name FROM nodes WHERE id = there.node_id);

-- name: stand_as
-- A node that was cut by its own word stays so, whatever it was granted before, until its turn comes.
INSERT INTO node_layouts AS there (node_id, tenant_id, pool_id, state, granted, since, reason)
SELECT nodes.id, pools.tenant_id, pools.id, 'settled', %(cut)s::jsonb, %(now)s, %(reason)s::jsonb
FROM nodes
JOIN pools ON pools.id = nodes.pool_id
WHERE nodes.id = %(node)s
ON CONFLICT (node_id) DO UPDATE SET granted = excluded.granted, version = there.version + 1;

-- name: unwanted
-- Nodes with a change pending that nobody wants any more: they are cut as the pool asks (or it asks for
-- nothing, or all that waits is cancelled).
SELECT node_layouts.*
FROM node_layouts
JOIN nodes ON nodes.id = node_id
WHERE node_layouts.pool_id = %(pool_id)s
    AND CASE WHEN %(node)s::int IS NULL THEN coalesce(own_layout, pinned_layout) IS NULL ELSE node_id = %(node)s END
    AND pending IS NOT NULL
    AND (%(after)s::jsonb IS NULL OR granted = %(after)s::jsonb)
ORDER BY node_id
FOR NO KEY UPDATE OF node_layouts;

-- name: drop_pending
UPDATE node_layouts
SET pending = NULL,
    state = CASE WHEN state = 'granted' THEN state ELSE 'settled' END,
    hold_from = CASE WHEN state = 'granted' THEN hold_from END,
    since = CASE WHEN state = 'granted' THEN since ELSE %(now)s END,
    reason = CASE WHEN state = 'granted' THEN reason ELSE %(reason)s::jsonb END,
    version = version + 1
WHERE node_id = ANY (%(ids)s)
RETURNING
    tenant_id, pool_id, state, granted, pending, (SELECT uid FROM nodes WHERE id = node_id),
    (SELECT name FROM nodes WHERE id = node_id);

-- name: as_before
-- What all nodes that follow their pool are cut into, where that is one cut and none was granted the
-- pending one.
SELECT min(granted::text)::jsonb AS cut
FROM nodes
LEFT JOIN node_layouts ON node_id = nodes.id
WHERE nodes.pool_id = %(pool_id)s AND coalesce(own_layout, pinned_layout) IS NULL
HAVING count(DISTINCT granted) = 1
    AND bool_and(coalesce(pending IS NOT NULL AND state <> 'granted', false));

-- name: pool_size
SELECT policy, (SELECT count(*) FROM nodes WHERE pool_id = pools.id)::int AS nodes
FROM pools
WHERE id = %(pool_id)s;

-- name: count_changing
SELECT count(*)::int AS changing FROM node_layouts WHERE pool_id = %(pool_id)s AND state <> 'settled';

-- name: list
SELECT
    nodes.uid AS node_id, nodes.name, pinned_layout, own_layout, coalesce(state, 'settled') AS state,
    CASE WHEN own_layout IS NULL THEN granted ELSE jsonb_build_object('migLayout', own_layout) END AS granted,
    pending,
    hold_from,
    spec_generation AS generation, grant_generation, observed_generation, observed_at, stale_since,
    coalesce(since, nodes.created_at) AS since, node_layouts.reason,
    ARRAY(
        SELECT jsonb_build_object(
            'gpu_id', gpus.uuid, 'index', index, 'board', board, 'split', split, 'ruler', ruler,
            'observed', ARRAY(
                SELECT concat_ws('@', attributes ->> 'migProfile', start) FROM atoms
                WHERE atoms.gpu_id = gpus.id AND retired_at IS NULL AND attributes ? 'migUuid'
                ORDER BY lower(units), atoms.id
            ),
            'state', coalesce(gpu_partitions.state, 'free'), 'held_from', lower(during),
            'since', gpu_partitions.since, 'reason', gpu_partitions.reason
        )
        FROM gpus
        LEFT JOIN gpu_partitions ON gpu_partitions.gpu_id = gpus.id
        LEFT JOIN bookings ON bookings.id = gpu_partitions.booking_id
        WHERE gpus.node_id = nodes.id AND present
        ORDER BY index
    ) AS gpus
FROM nodes
LEFT JOIN node_layouts ON node_layouts.node_id = nodes.id
WHERE nodes.pool_id = %(pool_id)s
    AND uid > %(after)s
    AND (%(state)s::text IS NULL OR coalesce(state, 'settled') = %(state)s)
ORDER BY uid
LIMIT %(limit)s;

-- name: plan
-- Each GPU of a pool, when the last that is booked of it ends, and whose that is.
SELECT
    nodes.id, nodes.uid AS node_id, nodes.name, coalesce(own_layout, pinned_layout) AS pinned_layout, granted,
    gpus.uuid AS gpu_id, held.ends AS free_from,
    held.holder AS held_by, held.open_ended
FROM nodes
LEFT JOIN node_layouts ON node_layouts.node_id = nodes.id
LEFT JOIN gpus ON gpus.node_id = nodes.id AND present
LEFT JOIN (
    SELECT
        gpu_id,
        max(upper(during)) FILTER (WHERE NOT upper_inf(during) AND upper(during) < '9999-12-31') AS ends,
        (array_agg(reservation_id ORDER BY upper(during) DESC NULLS FIRST, reservation_id))[1] AS holder,
        array_agg(reservation_id) FILTER (
            WHERE upper_inf(during) OR upper(during) >= '9999-12-31'
        ) AS open_ended
    FROM gpus
    JOIN bookings ON bookings.gpu_id = gpus.id
    WHERE gpus.pool_id = %(pool_id)s AND voided_at IS NULL AND reservation_id IS NOT NULL
        AND during && tstzrange(%(now)s, NULL)
    GROUP BY gpu_id
) AS held ON held.gpu_id = gpus.id
WHERE nodes.pool_id = %(pool_id)s
ORDER BY nodes.uid, gpus.index;

-- name: due
-- Scheduled ones whose time has come, and those before which somebody let go of something.
SELECT node_id, tenant_id, pool_id FROM node_layouts
WHERE state = 'scheduled' AND hold_from <= %(now)s
UNION
SELECT node_layouts.node_id, node_layouts.tenant_id, node_layouts.pool_id
FROM bookings
JOIN gpus ON gpus.id = bookings.gpu_id
JOIN node_layouts ON node_layouts.node_id = gpus.node_id
WHERE bookings.changed_xid >= %(since)s::text::xid8
    AND reservation_id IS NOT NULL
    AND state IN ('scheduled', 'waiting_open_ended')
ORDER BY pool_id, node_id;

-- name: rollouts
-- Pools in which nodes wait for their turn, and how many have it.
SELECT
    pools.id AS pool_id, pools.tenant_id, pools.policy,
    count(*) FILTER (WHERE state IN ('scheduled', 'granted'))::int AS under_way,
    (SELECT count(*) FROM nodes WHERE nodes.pool_id = pools.id)::int AS nodes
FROM node_layouts
JOIN pools ON pools.id = node_layouts.pool_id
WHERE state <> 'settled' AND (%(pool_id)s::text IS NULL OR pools.id = %(pool_id)s)
GROUP BY pools.id
HAVING %(pool_id)s::text IS NOT NULL OR bool_or(state = 'pending')
ORDER BY pools.id;

-- name: pending
-- Whose turn could come, the soonest free first; free_from is NULL where nothing is booked.
SELECT
    node_layouts.node_id,
    coalesce(bool_or(upper_inf(during) OR upper(during) >= '9999-12-31'), false) AS open_ended
FROM node_layouts
LEFT JOIN gpus ON gpus.node_id = node_layouts.node_id AND present
LEFT JOIN bookings ON bookings.gpu_id = gpus.id AND voided_at IS NULL AND during && tstzrange(%(now)s, NULL)
WHERE node_layouts.pool_id = %(pool_id)s AND state = 'pending'
GROUP BY node_layouts.node_id
ORDER BY max(upper(during)) NULLS FIRST, node_layouts.node_id;

-- name: limit
UPDATE node_layouts
SET reason = %(reason)s::jsonb
WHERE pool_id = %(pool_id)s AND state = 'pending' AND reason ->> 'code' <> %(reason)s::jsonb ->> 'code';

-- name: hold_layout
SELECT * FROM node_layouts WHERE node_id = %(node_id)s FOR NO KEY UPDATE;

-- name: hold_gpus
-- In the order in which bookings hold them.
SELECT gpus.id, gpus.uuid, gpu_partitions.booking_id, lower(during) AS held_from
FROM gpus
LEFT JOIN gpu_partitions ON gpu_partitions.gpu_id = gpus.id
LEFT JOIN bookings ON bookings.id = gpu_partitions.booking_id
WHERE gpus.node_id = %(node_id)s AND (present OR gpu_partitions.booking_id IS NOT NULL)
ORDER BY gpus.id
FOR NO KEY UPDATE OF gpus;

-- name: keep_gpu
INSERT INTO gpu_partitions (gpu_id, tenant_id, node_id, booking_id, state, since, reason)
VALUES (
    %(gpu_id)s, %(tenant_id)s, %(node_id)s, %(booking_id)s, 'scheduled', %(now)s, %(reason)s
)
ON CONFLICT (gpu_id) DO UPDATE SET
    booking_id = excluded.booking_id, since = excluded.since, reason = excluded.reason;

-- name: grant_gpus
UPDATE gpu_partitions
SET state = 'granted', since = %(now)s, reason = %(reason)s
WHERE node_id = %(node_id)s;

-- name: forget_gpus
DELETE FROM gpu_partitions WHERE node_id = %(node_id)s RETURNING booking_id;

-- name: move
UPDATE node_layouts
SET state = %(state)s,
    granted = %(granted)s,
    pending = %(pending)s,
    hold_from = %(hold_from)s,
    grant_generation = %(grant_generation)s,
    since = CASE WHEN state = %(state)s THEN since ELSE %(now)s END,
    reason = %(reason)s,
    version = version + 1
WHERE node_id = %(node_id)s;
