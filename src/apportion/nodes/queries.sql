-- name: sync_placements
INSERT INTO mig_placements (board, profile, start, units)
SELECT board, profile, start, units::int4multirange
FROM unnest(%(boards)s::text[], %(profiles)s::text[], %(starts)s::int[], %(units)s::text[])
    AS known (board, profile, start, units)
ON CONFLICT (board, profile, start) DO UPDATE SET units = excluded.units
    WHERE mig_placements.units <> excluded.units;

-- name: touch_pool
UPDATE pools
SET fleet_revision = fleet_revision + 1,
    holds_tenant_nodes = holds_tenant_nodes OR %(holds_tenant_nodes)s
WHERE id = %(pool_id)s;

-- name: hold_nodes
-- In the order in which bookings of host resources hold them.
SELECT
    id, uid, name, health, inventory, agent, own_layout, converged_at, accepted_at, acceptance,
    CASE WHEN own_layout IS NULL THEN mig_layout_from ELSE 'node' END AS mig_layout_from,
    CASE
        WHEN own_layout IS NOT NULL THEN jsonb_build_object('migLayout', own_layout)
        WHEN granted IS NOT NULL THEN granted
        WHEN pinned_layout IS NOT NULL THEN jsonb_build_object('migLayout', pinned_layout)
    END AS granted
FROM nodes
LEFT JOIN node_layouts ON node_id = id
WHERE nodes.pool_id = %(pool_id)s AND (%(id)s::int IS NULL OR id = %(id)s)
ORDER BY id
FOR NO KEY UPDATE OF nodes;

-- name: standings
SELECT
    name, uid, agent, converged_at, accepted_at, acceptance,
    CASE
        WHEN own_layout IS NOT NULL THEN jsonb_build_object('migLayout', own_layout)
        WHEN granted IS NOT NULL THEN granted
        WHEN pinned_layout IS NOT NULL THEN jsonb_build_object('migLayout', pinned_layout)
    END AS granted,
    public_key IS NOT NULL AND revoked_at IS NULL AS has_key,
    CASE WHEN public_key IS NULL THEN stale_since END AS silent_since
FROM nodes
LEFT JOIN node_layouts ON node_id = id
WHERE nodes.pool_id = %(pool_id)s AND name = ANY (%(names)s);

-- name: node
SELECT
    nodes.id, uid, nodes.pool_id, nodes.name, nodes.agent, own_layout, spec_generation, report_sequence,
    CASE WHEN own_layout IS NULL THEN mig_layout_from ELSE 'node' END AS mig_layout_from,
    observed_generation, converged, inventory, public_key, revoked_at, pinned_layout, stale_since, accepted_at, acceptance,
    outcomes,
    CASE
        WHEN own_layout IS NOT NULL THEN jsonb_build_object('migLayout', own_layout)
        WHEN granted IS NOT NULL THEN granted
        WHEN pinned_layout IS NOT NULL THEN jsonb_build_object('migLayout', pinned_layout)
    END AS granted
FROM nodes
JOIN pools ON pools.id = nodes.pool_id
JOIN tenants AS owner ON owner.id = pools.tenant_id AND owner.deleted_at IS NULL
LEFT JOIN node_layouts ON node_id = nodes.id
WHERE uid = %(uid)s AND pools.tenant_id = %(tenant_id)s;

-- name: take_report
UPDATE nodes
SET agent = coalesce(%(agent)s, agent, 'unnamed'),
    report_sequence = %(sequence)s,
    observed_generation = %(observed)s,
    observed_at = %(now)s,
    converged = %(converged)s,
    converged_at = CASE WHEN %(done)s THEN coalesce(converged_at, %(now)s) ELSE converged_at END,
    report_digest = %(digest)s,
    outcomes = %(outcomes)s,
    -- What let it in stays on record: once it has, its spec asks for no check any more.
    acceptance = CASE WHEN accepted_at IS NULL THEN %(acceptance)s ELSE acceptance END,
    accepted_at = CASE WHEN %(passed)s THEN coalesce(accepted_at, %(now)s) ELSE accepted_at END,
    stale_since = NULL
WHERE id = %(id)s;

-- name: same_again
-- Nothing follows from a report that says what the last one said, so nothing else is looked at.
UPDATE nodes
SET report_sequence = %(sequence)s, observed_at = %(now)s
WHERE uid = %(uid)s
    AND report_sequence = %(sequence)s::bigint - 1
    AND observed_generation = %(observed)s
    AND report_digest = %(digest)s
    AND inventory_at > %(fresh)s
    AND stale_since IS NULL
    AND public_key = %(key)s
    AND revoked_at IS NULL
    AND EXISTS (
        SELECT FROM pools JOIN tenants ON tenants.id = pools.tenant_id
        WHERE pools.id = nodes.pool_id AND deleted_at IS NULL
    )
RETURNING spec_generation;

-- name: heard_of
-- Pools with nodes whose agent is heard of, and since when the quietest one is not. A node without a key
-- is one of these while its last word was a report, and no inventory that somebody imported since.
SELECT pools.id AS pool_id, pools.tenant_id, policy, min(coalesce(observed_at, enrolled_at)) AS oldest
FROM nodes
JOIN pools ON pools.id = nodes.pool_id
WHERE nodes.agent IS NOT NULL AND stale_since IS NULL
    AND (public_key IS NOT NULL OR observed_at >= inventory_at)
GROUP BY pools.id
ORDER BY pools.id;

-- name: mark_stale
UPDATE nodes
SET stale_since = %(now)s
WHERE pool_id = %(pool_id)s AND agent IS NOT NULL AND stale_since IS NULL
    AND (public_key IS NOT NULL OR observed_at >= inventory_at)
    AND coalesce(observed_at, enrolled_at) <= %(deadline)s
RETURNING uid, name, coalesce(observed_at, enrolled_at) AS heard_at,
    (SELECT count(*) FROM gpus WHERE node_id = nodes.id AND present)::int AS gpus;

-- name: stale_nodes
SELECT
    nodes.pool_id, min(stale_since) AS since, count(DISTINCT nodes.id)::int AS nodes,
    count(gpus.id)::int AS gpus
FROM nodes
LEFT JOIN gpus ON gpus.node_id = nodes.id AND present
WHERE nodes.pool_id = ANY (%(pool_ids)s) AND stale_since IS NOT NULL
GROUP BY nodes.pool_id;

-- name: raise_spec
-- What is over by now is asked for no more, though no tick has said so yet.
WITH over AS (
    UPDATE assignments
    SET state = 'withdrawn', since = %(now)s, reason = %(over)s, device = NULL, generation = spec_generation + 1
    FROM bookings, nodes
    WHERE bookings.id = booking_id
        AND nodes.id = node_id
        AND node_id = %(id)s
        AND assignments.state <> 'withdrawn'
        AND upper(planned) <= %(now)s
)
UPDATE nodes SET spec_generation = spec_generation + 1 WHERE id = %(id)s RETURNING spec_generation;

-- name: raise_specs
UPDATE nodes SET spec_generation = spec_generation + 1 WHERE pool_id = %(pool_id)s;

-- name: set_layout_from
UPDATE nodes
SET mig_layout_from = %(mig_layout_from)s, spec_generation = spec_generation + 1
WHERE id = %(id)s AND mig_layout_from <> %(mig_layout_from)s
RETURNING spec_generation;

-- name: set_own_layout
UPDATE nodes
SET own_layout = %(layout)s, spec_generation = spec_generation + 1
WHERE id = %(id)s AND own_layout IS DISTINCT FROM %(layout)s::text
RETURNING spec_generation, mig_layout_from;

-- name: set_pin
UPDATE nodes
SET pinned_layout = %(layout)s
WHERE id = %(id)s AND pinned_layout IS DISTINCT FROM %(layout)s::text
RETURNING spec_generation;

-- name: hold_gpus_of_pool
SELECT 1 FROM gpus
WHERE pool_id = %(pool_id)s AND (%(node)s::int IS NULL OR node_id = %(node)s)
ORDER BY id
FOR NO KEY UPDATE;

-- name: products
SELECT product, board, array_agg(DISTINCT nodes.name ORDER BY nodes.name) AS nodes,
    count(*)::int AS gpus
FROM gpus
JOIN nodes ON nodes.id = node_id
WHERE gpus.pool_id = %(pool_id)s AND present
GROUP BY product, board
ORDER BY product, board;

-- name: memories
SELECT name, (inventory #>> '{host,memory_mib}')::bigint AS memory_mib
FROM nodes
WHERE pool_id = %(pool_id)s
ORDER BY name;

-- name: upsert_nodes
-- Who owns a machine is said when it joins, and stays.
INSERT INTO nodes (
    uid, tenant_id, pool_id, name, target, controller, health, health_reason, inventory,
    inventory_at, created_at, agent
)
SELECT
    uid, tenant_id, %(pool_id)s, name, %(target)s, controller, health, health_reason, inventory,
    %(now)s, %(now)s, agent
FROM unnest(
    %(uids)s::text[], %(tenant_ids)s::text[], %(names)s::text[], %(controllers)s::text[],
    %(healths)s::text[], %(health_reasons)s::text[], %(inventories)s::jsonb[], %(agents)s::text[]
) AS new (uid, tenant_id, name, controller, health, health_reason, inventory, agent)
ON CONFLICT (pool_id, name) DO UPDATE SET
    controller = excluded.controller,
    health = excluded.health,
    health_reason = excluded.health_reason,
    inventory = excluded.inventory,
    inventory_at = excluded.inventory_at,
    agent = coalesce(excluded.agent, nodes.agent),
    -- Whoever imports speaks for a node without a key, as its agent did.
    stale_since = CASE WHEN nodes.public_key IS NULL THEN NULL ELSE nodes.stale_since END
RETURNING id, uid, tenant_id, name, agent, xmax = 0 AS joined;

-- name: homes
SELECT gpus.uuid, gpus.node_id, nodes.name AS node
FROM gpus
JOIN nodes ON nodes.id = gpus.node_id
WHERE gpus.uuid = ANY (%(uuids)s);

-- name: hold_gpus
-- In the order in which bookings hold them.
SELECT 1 FROM gpus WHERE uuid = ANY (%(uuids)s) ORDER BY id FOR NO KEY UPDATE;

-- name: upsert_gpus
INSERT INTO gpus (
    uuid, tenant_id, pool_id, node_id, index, product, model, board, pci_address, memory_mib,
    numa_node, mig_current, mig_pending, split, ruler, nvlink, unbookable_reason, present
)
SELECT
    uuid, %(tenant_id)s, %(pool_id)s, node_id, index, product, %(model)s, board, pci, memory, numa,
    current, pending, split, ruler, nvlink, reason, true
FROM unnest(
    %(uuids)s::text[], %(node_ids)s::int[], %(indexes)s::int[], %(products)s::text[],
    %(boards)s::text[], %(pci)s::text[], %(memories)s::bigint[], %(numa)s::int[],
    %(currents)s::boolean[], %(pendings)s::boolean[], %(splits)s::text[], %(rulers)s::int[],
    %(nvlinks)s::jsonb[], %(reasons)s::text[]
) AS new (
    uuid, node_id, index, product, board, pci, memory, numa, current, pending, split, ruler, nvlink,
    reason
)
ON CONFLICT (uuid) DO UPDATE SET
    index = excluded.index,
    product = excluded.product,
    model = excluded.model,
    board = excluded.board,
    pci_address = excluded.pci_address,
    memory_mib = excluded.memory_mib,
    numa_node = excluded.numa_node,
    mig_current = excluded.mig_current,
    mig_pending = excluded.mig_pending,
    split = excluded.split,
    ruler = excluded.ruler,
    nvlink = excluded.nvlink,
    unbookable_reason = excluded.unbookable_reason,
    present = true;

-- name: miss_gpus
UPDATE gpus
SET present = false, unbookable_reason = 'missing'
WHERE node_id = ANY (%(node_ids)s) AND uuid <> ALL (%(uuids)s::text[]) AND present;

-- name: live_atoms
-- Every GPU of the nodes, also one without atoms yet.
SELECT
    gpus.uuid, gpus.id AS gpu_id, atoms.id, atoms.key, atoms.reason, atoms.attributes, share_num,
    share_den
FROM gpus
LEFT JOIN atoms ON atoms.gpu_id = gpus.id AND atoms.retired_at IS NULL
WHERE gpus.node_id = ANY (%(node_ids)s);

-- name: raise_generation
UPDATE gpus
SET layout_generation = layout_generation + 1
WHERE uuid = ANY (%(uuids)s);

-- name: miss_atoms
UPDATE atoms SET bookable = false, reason = %(reason)s WHERE id = ANY (%(ids)s);

-- name: retire_atoms
UPDATE atoms
SET bookable = false, reason = 'retired', retired_at = %(now)s
WHERE id = ANY (%(ids)s);

-- name: insert_atoms
INSERT INTO atoms (
    tenant_id, pool_id, gpu_id, key, class, units, generation, board, profile, start, share_num,
    share_den, bookable, reason, attributes
)
SELECT
    %(tenant_id)s, %(pool_id)s, new.gpu_id, key, class, units::int4multirange,
    gpus.layout_generation, new.board, profile, start, share_num, share_den, reason IS NULL, reason,
    attributes
FROM unnest(
    %(gpu_ids)s::int[], %(keys)s::text[], %(classes)s::text[], %(units)s::text[], %(boards)s::text[],
    %(profiles)s::text[], %(starts)s::int[], %(share_nums)s::int[], %(share_dens)s::int[],
    %(reasons)s::text[], %(attributes)s::jsonb[]
) AS new (
    gpu_id, key, class, units, board, profile, start, share_num, share_den, reason, attributes
)
JOIN gpus ON gpus.id = new.gpu_id;

-- name: update_atoms
UPDATE atoms
SET reason = new.reason, bookable = new.reason IS NULL, attributes = new.attributes
FROM unnest(%(ids)s::bigint[], %(reasons)s::text[], %(attributes)s::jsonb[])
    AS new (id, reason, attributes)
WHERE atoms.id = new.id;

-- name: upsert_resources
-- A row that would say the same again is not rewritten.
INSERT INTO node_resources (node_id, tenant_id, resource, total, ratio, capacity, updated_at)
SELECT node_id, %(tenant_id)s, resource, total, ratio, capacity, %(now)s
FROM unnest(
    %(node_ids)s::int[], %(resources)s::text[], %(totals)s::bigint[], %(ratios)s::numeric[],
    %(capacities)s::bigint[]
) AS new (node_id, resource, total, ratio, capacity)
ON CONFLICT (node_id, resource) DO UPDATE SET
    total = excluded.total,
    ratio = excluded.ratio,
    capacity = excluded.capacity,
    updated_at = excluded.updated_at
WHERE (node_resources.total, node_resources.ratio, node_resources.capacity)
    IS DISTINCT FROM (excluded.total, excluded.ratio, excluded.capacity);

-- name: drop_resources
DELETE FROM node_resources WHERE node_id = ANY (%(node_ids)s);

-- name: list_nodes
-- Those in the tenant's pools, whoever owns the machine.
SELECT
    nodes.uid AS id, pool_id, nodes.name, nodes.tenant_id, target, controller, health, health_reason,
    nodes.agent, own_layout, pinned_layout, spec_generation, observed_generation, inventory_at, attestor,
    CASE WHEN own_layout IS NULL THEN mig_layout_from ELSE 'node' END AS mig_layout_from,
    enrolled_at, revoked_at, encode(public_key, 'base64') AS public_key, observed_at, stale_since,
    converged_at, accepted_at, acceptance, outcomes, policy, pools.agent AS pool_agent,
    (SELECT count(*) FROM gpus WHERE gpus.node_id = nodes.id AND present)::int AS gpus,
    (
        SELECT count(*) FROM assignments
        WHERE assignments.node_id = nodes.id
            AND state = 'withdrawn'
            AND in_hands
            AND reason ->> 'code' IN ('holder_still_there', 'memory_not_idle', 'not_given_back')
    )::int AS not_given_back,
    COALESCE(
        (
            SELECT jsonb_agg(
                jsonb_build_object(
                    'resource', resource, 'total', total, 'ratio', ratio::text, 'capacity', capacity
                )
                ORDER BY resource
            )
            FROM node_resources
            WHERE node_resources.node_id = nodes.id
        ),
        '[]'
    ) AS resources
FROM nodes
JOIN pools ON pools.id = nodes.pool_id
WHERE pools.tenant_id = %(tenant_id)s
    AND uid > %(after)s
    AND (%(id)s::text IS NULL OR uid = %(id)s)
    AND (%(pool_id)s::text IS NULL OR pool_id = %(pool_id)s)
    AND (%(name)s::text IS NULL OR nodes.name = %(name)s)
    AND (%(health)s::text IS NULL OR health = %(health)s)
    AND (%(stale)s::boolean IS NULL OR (stale_since IS NOT NULL) = %(stale)s)
ORDER BY uid
LIMIT %(limit)s;

-- name: list_gpus
SELECT
    gpus.uuid AS id, gpus.pool_id, nodes.name AS node, index, product, model, board,
    gpus.memory_mib, numa_node, split, ruler, layout_generation, stale_since,
    coalesce(unbookable_reason, CASE WHEN stale_since IS NOT NULL THEN 'node_stale' END)
        AS unbookable_reason
FROM gpus
JOIN nodes ON nodes.id = gpus.node_id
WHERE (gpus.tenant_id = %(tenant_id)s OR gpus.pool_id = ANY (%(offered)s))
    AND gpus.uuid > %(after)s
    AND (%(id)s::text IS NULL OR gpus.uuid = %(id)s)
    AND (%(pool_id)s::text IS NULL OR gpus.pool_id = %(pool_id)s)
    AND (%(node)s::text IS NULL OR nodes.name = %(node)s)
ORDER BY gpus.uuid
LIMIT %(limit)s;

-- name: list_atoms
SELECT
    atoms.key AS id, atoms.pool_id, gpus.uuid AS gpu_id, nodes.name AS node, class AS class_,
    units::text AS units, share_num, share_den, stale_since, attributes,
    bookable AND stale_since IS NULL AS bookable,
    coalesce(reason, CASE WHEN stale_since IS NOT NULL THEN 'node_stale' END) AS reason
FROM atoms
JOIN gpus ON gpus.id = atoms.gpu_id
JOIN nodes ON nodes.id = gpus.node_id
WHERE (atoms.tenant_id = %(tenant_id)s OR atoms.pool_id = ANY (%(offered)s))
    AND retired_at IS NULL
    AND atoms.key > %(after)s
    AND (%(pool_id)s::text IS NULL OR atoms.pool_id = %(pool_id)s)
    AND (%(gpu_id)s::text IS NULL OR gpus.uuid = %(gpu_id)s)
    AND (%(class)s::text IS NULL OR class = %(class)s)
    AND (%(bookable)s::boolean IS NULL OR (bookable AND stale_since IS NULL) = %(bookable)s)
    AND (%(profile)s::text IS NULL OR attributes ->> 'migProfile' = %(profile)s)
ORDER BY atoms.key
LIMIT %(limit)s;

-- name: count_fleet
SELECT
    nodes.pool_id, count(DISTINCT nodes.id)::int AS nodes,
    count(gpus.id) FILTER (WHERE present)::int AS gpus,
    count(gpus.id) FILTER (WHERE present AND stale_since IS NOT NULL)::int AS stale_gpus
FROM nodes
JOIN pools ON pools.id = nodes.pool_id
LEFT JOIN gpus ON gpus.node_id = nodes.id
WHERE pools.tenant_id = %(tenant_id)s
GROUP BY nodes.pool_id;

-- name: fleet_revisions
SELECT id, fleet_revision FROM pools WHERE id = ANY (%(ids)s);

-- name: fleet_nodes
SELECT
    nodes.id, nodes.name, health <> 'no_capacity' AND stale_since IS NULL AS healthy,
    (extract(epoch FROM stale_since) * 1000000)::bigint AS stale_since, agent IS NOT NULL AS has_agent,
    coalesce(vcpu.capacity, 0) AS vcpu_milli, coalesce(memory.capacity, 0) AS memory_mib
FROM nodes
LEFT JOIN node_resources AS vcpu ON vcpu.node_id = nodes.id AND vcpu.resource = 'vcpu'
LEFT JOIN node_resources AS memory ON memory.node_id = nodes.id AND memory.resource = 'memoryGiB'
WHERE pool_id = %(pool_id)s
ORDER BY nodes.id;

-- name: fleet_gpus
SELECT
    gpus.id, gpus.node_id, gpus.uuid, nvlink, split, ruler, layout_generation, atoms.id AS atom_id,
    atoms.key, atoms.class, atoms.units::text AS units, atoms.profile, atoms.bookable, atoms.reason,
    atoms.attributes,
    atoms.share_num, atoms.share_den
FROM gpus
JOIN atoms ON atoms.gpu_id = gpus.id AND retired_at IS NULL
WHERE gpus.pool_id = %(pool_id)s AND present
ORDER BY gpus.id, atoms.id;

-- name: enroll
-- A node that has no key, or had one that is revoked, begins anew as it is asked to be.
UPDATE nodes
SET public_key = %(public_key)s, attestor = %(attestor)s, enrolled_at = %(now)s, revoked_at = NULL,
    agent = %(agent)s, report_sequence = NULL, observed_generation = NULL, observed_at = NULL,
    converged = '{}', converged_at = NULL, report_digest = NULL, outcomes = '{}', acceptance = '{}',
    accepted_at = NULL, stale_since = NULL
WHERE pool_id = %(pool_id)s AND name = %(name)s AND (public_key IS NULL OR revoked_at IS NOT NULL)
RETURNING id, uid;

-- name: revoke_node
-- Whoever is not believed is not heard of.
UPDATE nodes
SET revoked_at = %(now)s, stale_since = coalesce(stale_since, %(now)s)
WHERE id = %(id)s AND revoked_at IS NULL
RETURNING id;

-- name: insert_join_token
INSERT INTO join_tokens (
    id, tenant_id, pool_id, name, class, hash, created_by, created_at, expires_at
)
VALUES (
    %(id)s, %(tenant_id)s, %(pool_id)s, %(name)s, %(class)s, %(hash)s, %(created_by)s, %(now)s,
    %(expires_at)s
)
ON CONFLICT (id) DO NOTHING;

-- name: list_join_tokens
SELECT
    join_tokens.id, join_tokens.pool_id, join_tokens.name, class, created_by, join_tokens.created_at,
    expires_at, used_at, nodes.uid AS node_id, join_tokens.revoked_at,
    CASE
        WHEN used_at IS NOT NULL THEN 'used'
        WHEN join_tokens.revoked_at IS NOT NULL THEN 'revoked'
        WHEN expires_at <= %(now)s THEN 'expired'
        ELSE 'open'
    END AS state
FROM join_tokens
LEFT JOIN nodes ON nodes.id = join_tokens.node_id
WHERE join_tokens.tenant_id = %(tenant_id)s
    AND join_tokens.id > %(after)s
    AND (%(id)s::text IS NULL OR join_tokens.id = %(id)s)
    AND (%(pool_id)s::text IS NULL OR join_tokens.pool_id = %(pool_id)s)
    AND (
        %(state)s::text IS NULL
        OR %(state)s = CASE
            WHEN used_at IS NOT NULL THEN 'used'
            WHEN join_tokens.revoked_at IS NOT NULL THEN 'revoked'
            WHEN expires_at <= %(now)s THEN 'expired'
            ELSE 'open'
        END
    )
ORDER BY join_tokens.id
LIMIT %(limit)s;

-- name: revoke_join_token
UPDATE join_tokens
SET revoked_at = %(now)s
WHERE id = %(id)s AND used_at IS NULL AND revoked_at IS NULL
RETURNING id;

-- name: find_join_token
-- By its hash: what it lets into, and which node it has let in, with that node's key.
SELECT
    join_tokens.id, join_tokens.tenant_id, join_tokens.pool_id, class, used_at, nodes.uid AS node_id,
    CASE WHEN nodes.revoked_at IS NULL THEN public_key END AS public_key
FROM join_tokens
JOIN tenants ON tenants.id = join_tokens.tenant_id AND deleted_at IS NULL
LEFT JOIN nodes ON nodes.id = join_tokens.node_id
WHERE hash = %(hash)s AND join_tokens.revoked_at IS NULL
    AND (used_at IS NOT NULL OR expires_at > %(now)s);

-- name: use_join_token
UPDATE join_tokens
SET used_at = %(now)s, node_id = %(node_id)s
WHERE id = %(id)s AND used_at IS NULL AND revoked_at IS NULL
RETURNING id;

-- name: hold_nodes_of
-- Those with an agent on which some reservations lie: held before GPUs, as all nodes are.
SELECT 1
FROM nodes
WHERE agent IS NOT NULL AND id IN (
    SELECT node_id FROM bookings JOIN gpus ON gpus.id = gpu_id
    WHERE reservation_id = ANY (%(ids)s) AND voided_at IS NULL
)
ORDER BY id
FOR NO KEY UPDATE;

-- name: assign
-- What has begun is asked for, and what is over on the same GPUs is not any more, though no tick has said so yet.
WITH over AS (
    UPDATE assignments
    SET state = 'withdrawn', since = %(now)s, reason = %(over)s, device = NULL, generation = spec_generation + 1
    FROM bookings, nodes
    WHERE bookings.id = booking_id
        AND nodes.id = assignments.node_id
        AND assignments.state <> 'withdrawn'
        AND upper(planned) <= %(now)s
        AND assignments.gpu_id IN (
            SELECT gpu_id FROM bookings WHERE reservation_id = ANY (%(ids)s) AND voided_at IS NULL
        )
    RETURNING assignments.node_id
), begun AS (
    INSERT INTO assignments (
        booking_id, tenant_id, node_id, gpu_id, reservation_id, piece, generation, state, since, reason
    )
    SELECT
        bookings.id, bookings.tenant_id, nodes.id, gpus.id, reservation_id, piece, spec_generation + 1,
        'asked', %(now)s, %(asked)s::jsonb
    FROM bookings
    JOIN gpus ON gpus.id = bookings.gpu_id
    JOIN nodes ON nodes.id = gpus.node_id
    JOIN pools ON pools.id = nodes.pool_id
    WHERE reservation_id = ANY (%(ids)s)
        AND voided_at IS NULL
        AND planned @> %(now)s
        AND nodes.agent IS NOT NULL
        AND pools.agent <> 'none'
    ON CONFLICT (booking_id) DO NOTHING
    RETURNING node_id
)
UPDATE nodes
SET spec_generation = spec_generation + 1
WHERE id IN (SELECT node_id FROM over UNION SELECT node_id FROM begun);

-- name: withdraw
WITH gone AS (
    UPDATE assignments
    SET state = 'withdrawn', since = %(now)s, reason = %(over)s, device = NULL, generation = spec_generation + 1
    FROM nodes
    WHERE nodes.id = node_id AND reservation_id = ANY (%(ids)s) AND state <> 'withdrawn'
    RETURNING node_id
)
UPDATE nodes SET spec_generation = spec_generation + 1 WHERE id IN (SELECT node_id FROM gone);

-- name: unask
-- What was asked for too soon, and nobody has been given, is as if it had not been asked for.
WITH gone AS (
    DELETE FROM assignments WHERE reservation_id = ANY (%(ids)s) RETURNING node_id
)
UPDATE nodes SET spec_generation = spec_generation + 1 WHERE id IN (SELECT node_id FROM gone);

-- name: in_hands
-- What somebody may still be on. Of a node whose key is revoked nobody will ever say that it is free.
SELECT reservation_id, booking_id
FROM assignments
JOIN nodes ON nodes.id = node_id
WHERE reservation_id = ANY (%(ids)s) AND in_hands AND revoked_at IS NULL
ORDER BY booking_id;

-- name: leavers
-- Who may be on anything of a node; the window of none goes on.
SELECT DISTINCT reservation_id
FROM assignments
JOIN nodes ON nodes.id = node_id
WHERE node_id = %(node_id)s AND in_hands AND revoked_at IS NULL
ORDER BY reservation_id;

-- name: to_keep
-- What was withdrawn, is in somebody's hands, and is soon to be had by others; but for what others have already.
SELECT booking_id
FROM assignments
JOIN nodes ON nodes.id = node_id
JOIN bookings AS mine ON mine.id = booking_id
WHERE in_hands
    AND assignments.state = 'withdrawn'
    AND revoked_at IS NULL
    AND mine.voided_at IS NULL
    AND upper(mine.during) < %(before)s
    AND NOT EXISTS (
        SELECT FROM bookings AS others
        WHERE others.gpu_id = mine.gpu_id
            AND others.id <> mine.id
            AND others.units && mine.units
            AND others.voided_at IS NULL
            AND others.during @> upper(mine.during)
    )
ORDER BY booking_id;

-- name: ask_anew
UPDATE nodes
SET spec_generation = spec_generation + 1
WHERE id IN (
    SELECT node_id FROM assignments WHERE reservation_id = ANY (%(ids)s) AND state <> 'withdrawn'
);

-- name: leaving
-- What a node is not asked for any more and tells of, and what is in somebody's hands.
SELECT
    booking_id, assignments.tenant_id, bookings.pool_id, assignments.reservation_id, assignments.piece,
    gpus.uuid AS gpu, reason, assignments.generation
FROM assignments
JOIN bookings ON bookings.id = booking_id
JOIN gpus ON gpus.id = assignments.gpu_id
WHERE assignments.node_id = %(node_id)s
    AND assignments.state = 'withdrawn'
    AND released IS NULL
    AND (
        in_hands
        OR booking_id IN (
            SELECT bookings.id
            FROM unnest(%(names)s::text[]) AS told (name)
            JOIN bookings ON bookings.reservation_id = split_part(name, '.', 1)
        )
    )
ORDER BY booking_id;

-- name: note_leaving
UPDATE assignments
SET reason = new.reason,
    since = CASE WHEN new.since THEN %(now)s ELSE assignments.since END,
    released = new.released
FROM json_to_recordset(%(rows)s::json)
    AS new (booking_id bigint, reason jsonb, since boolean, released jsonb)
WHERE assignments.booking_id = new.booking_id;

-- name: unassigned
-- Whose window has begun on some nodes, and which those were not asked for: they had no agent then.
SELECT DISTINCT bookings.reservation_id
FROM gpus
JOIN bookings ON bookings.gpu_id = gpus.id
LEFT JOIN assignments ON booking_id = bookings.id
WHERE gpus.node_id = ANY (%(node_ids)s)
    AND during @> %(now)s
    AND planned @> %(now)s
    AND voided_at IS NULL
    AND bookings.reservation_id IS NOT NULL
    AND booking_id IS NULL;

-- name: assigned
SELECT
    booking_id, assignments.tenant_id, bookings.pool_id, assignments.reservation_id, assignments.piece,
    gpus.uuid AS gpu, bookings.class AS cls, bookings.units::text AS units, ruler, atoms.profile, atoms.start,
    bookings.share_num, bookings.share_den, lower(planned) AS begins,
    CASE WHEN upper(planned) < '9989-01-01Z' THEN upper(planned) END AS ends,
    assignments.generation, assignments.state, assignments.reason, assignments.device, bound,
    CASE WHEN present THEN unbookable_reason ELSE 'missing' END AS gpu_reason, mig_current, mig_pending,
    atoms.reason AS atom_reason, coalesce(atoms.attributes, '{}') AS found
FROM assignments
JOIN bookings ON bookings.id = booking_id
JOIN gpus ON gpus.id = assignments.gpu_id
LEFT JOIN atoms ON atoms.id = atom_id
WHERE assignments.node_id = %(node_id)s AND assignments.state <> 'withdrawn'
ORDER BY gpus.index, assignments.reservation_id, assignments.piece;

-- name: gpus_there
SELECT uuid FROM gpus WHERE node_id = %(node_id)s AND present ORDER BY index;

-- name: note_devices
UPDATE assignments
SET since = CASE WHEN assignments.state = new.state THEN since ELSE %(now)s END,
    state = new.state,
    reason = new.reason,
    device = new.device,
    bound = new.bound
FROM json_to_recordset(%(rows)s::json)
    AS new (booking_id bigint, state text, reason jsonb, device jsonb, bound jsonb)
WHERE assignments.booking_id = new.booking_id;
