-- name: insert
-- No row comes back where the same key has made the pool already, or is making it now, or where
-- another pool got the name: which of both an index finds first is chance.
INSERT INTO pools (
    id, tenant_id, site_id, name, class, gpu_model, sharing, agent, provider_account_id,
    policy, replicas, shares, single_tenant, created_at
) VALUES (
    %(id)s, %(tenant_id)s, %(site_id)s, %(name)s, %(class)s, %(gpu_model)s, %(sharing)s, %(agent)s,
    %(provider_account_id)s, %(policy)s, %(replicas)s, %(shares)s, %(single_tenant)s, %(now)s
)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: name_is_taken
-- By another pool: one with this id is made by the same key, just now.
SELECT id
FROM pools
WHERE tenant_id = %(tenant_id)s AND name = %(name)s AND id IS DISTINCT FROM %(id)s;

-- name: find_own
SELECT pools.*, sites.region
FROM pools
JOIN sites ON sites.id = pools.site_id
WHERE pools.id = %(id)s AND pools.tenant_id = %(tenant_id)s;

-- name: hold_own
-- Whoever changes a pool, its offers or its limits; those who refer to the pool do not wait.
SELECT pools.*, sites.region
FROM pools
JOIN sites ON sites.id = pools.site_id
WHERE pools.id = %(id)s AND pools.tenant_id = %(tenant_id)s
FOR NO KEY UPDATE OF pools;

-- name: update
UPDATE pools
SET gpu_model = %(gpu_model)s,
    policy = %(policy)s,
    replicas = %(replicas)s,
    shares = %(shares)s,
    single_tenant = %(single_tenant)s,
    version = version + 1,
    changed_xid = pg_current_xact_id()
WHERE id = %(id)s;

-- name: touch
-- Who may use it has changed: what waits for it is tried again.
UPDATE pools SET changed_xid = pg_current_xact_id() WHERE id = %(id)s;

-- name: archive
UPDATE pools SET archived_at = %(now)s, changed_xid = pg_current_xact_id() WHERE id = %(id)s;

-- name: hold_pools_around
-- The pools that a tenant has and the pools that it is offered, in the order of their ids.
SELECT id, tenant_id
FROM pools
WHERE NOT archived
    AND (
        tenant_id = %(tenant_id)s
        OR id IN (SELECT pool_id FROM offers WHERE offers.tenant_id = %(tenant_id)s)
    )
ORDER BY id
FOR NO KEY UPDATE;

-- name: select
-- Pools that a tenant owns, and those offered to it or, with descendants, to one above it. lineage is
-- the tenant and those above it, itself first: the nearest offer is the one that counts. Each way to a
-- pool gives one page at most, so that a page costs the same wherever it begins.
-- Numbers of quotas travel as text: JSON numbers would pass through floating point.
WITH page AS (
    SELECT DISTINCT ON (id) id, quota_tenant_id
    FROM (
        (
            SELECT id, tenant_id AS quota_tenant_id, 0 AS distance
            FROM pools
            WHERE tenant_id = %(tenant_id)s
                AND id > %(after)s
                AND %(owned)s::boolean IS NOT FALSE
                AND (%(archived)s::boolean IS NULL OR archived = %(archived)s)
                AND (%(id)s::text IS NULL OR id = %(id)s)
                AND (%(name)s::text IS NULL OR name = %(name)s)
                AND (%(model)s::text IS NULL OR lower(gpu_model) = lower(%(model)s))
                AND (%(sharing)s::text IS NULL OR sharing = %(sharing)s)
                AND (%(class)s::text IS NULL OR class = %(class)s)
                AND (%(site_id)s::text IS NULL OR site_id = %(site_id)s)
            ORDER BY id
            LIMIT %(limit)s
        )
        UNION ALL
        SELECT offered.id, above.tenant_id, above.distance
        FROM unnest(%(lineage)s::text[]) WITH ORDINALITY AS above (tenant_id, distance)
        CROSS JOIN LATERAL (
            SELECT pools.id
            FROM offers
            JOIN pools ON pools.id = offers.pool_id
            WHERE offers.tenant_id = above.tenant_id
                AND (above.tenant_id = %(tenant_id)s OR include_descendants)
                AND offers.pool_id > %(after)s
                AND %(owned)s::boolean IS NOT TRUE
                AND %(archived)s::boolean IS NOT TRUE
                AND (%(id)s::text IS NULL OR offers.pool_id = %(id)s)
                AND (%(name)s::text IS NULL OR name = %(name)s)
                AND (%(model)s::text IS NULL OR lower(gpu_model) = lower(%(model)s))
                AND (%(sharing)s::text IS NULL OR pools.sharing = %(sharing)s)
                AND (%(class)s::text IS NULL OR class = %(class)s)
                AND (%(site_id)s::text IS NULL OR site_id = %(site_id)s)
            ORDER BY offers.pool_id
            LIMIT %(limit)s
        ) AS offered
    ) AS ways
    ORDER BY id, distance
    LIMIT %(limit)s
)
SELECT
    pools.*, sites.region, page.quota_tenant_id,
    COALESCE(
        (
            SELECT jsonb_agg(
                jsonb_build_object('resource', resource, 'max', max::text, 'used', used::text)
                ORDER BY resource
            )
            FROM quotas
            WHERE quotas.pool_id = pools.id AND quotas.tenant_id = page.quota_tenant_id
        ),
        '[]'
    ) AS quotas
FROM page
JOIN pools USING (id)
JOIN sites ON sites.id = pools.site_id
ORDER BY id;

-- name: records
-- Pools that tenants may use: their own, and those offered to one or, with descendants, to one above
-- it. lineage is the tenant and those above it, itself first: the nearest offer is the one that counts.
SELECT
    asking.tenant_id AS user_tenant_id, pools.id, pools.tenant_id, pools.name, pools.class,
    pools.gpu_model, pools.sharing, pools.policy, pools.archived, pools.agent,
    sites.region,
    CASE WHEN pools.tenant_id = asking.tenant_id THEN pools.tenant_id ELSE offer.tenant_id END
        AS quota_tenant_id,
    CASE WHEN pools.tenant_id = asking.tenant_id THEN 0 ELSE offer.priority END AS priority
FROM json_to_recordset(%(asking)s::json) AS asking (tenant_id text, lineage text[], ids text[])
JOIN tenants ON tenants.id = asking.tenant_id AND tenants.deleted_at IS NULL
JOIN pools ON pools.id = ANY (asking.ids) AND NOT pools.archived
JOIN sites ON sites.id = pools.site_id
LEFT JOIN LATERAL (
    SELECT tenant_id, priority
    FROM offers
    WHERE pool_id = pools.id AND tenant_id = ANY (asking.lineage)
        AND (tenant_id = asking.tenant_id OR include_descendants)
    ORDER BY array_position(asking.lineage, tenant_id)
    LIMIT 1
) AS offer ON true
WHERE pools.tenant_id = asking.tenant_id OR offer.tenant_id IS NOT NULL;

-- name: priorities
-- Of the offers by which tenants use pools, the nearest one each; of one's own pools 0. Pairs of which
-- the tenant may not use the pool are left out.
SELECT
    asked.tenant_id, asked.pool_id,
    CASE WHEN pools.tenant_id = asked.tenant_id THEN 0 ELSE offer.priority END AS priority
FROM unnest(%(tenants)s::text[], %(pools)s::text[]) AS asked (tenant_id, pool_id)
JOIN pools ON pools.id = asked.pool_id AND NOT pools.archived
JOIN tenants ON tenants.id = asked.tenant_id AND tenants.deleted_at IS NULL
LEFT JOIN LATERAL (
    SELECT offers.priority
    FROM offers
    WHERE offers.pool_id = pools.id AND offers.tenant_id = ANY (tenants.ancestors)
        AND (offers.tenant_id = asked.tenant_id OR include_descendants)
    ORDER BY array_position(tenants.ancestors, offers.tenant_id) DESC
    LIMIT 1
) AS offer ON true
WHERE pools.tenant_id = asked.tenant_id OR offer.priority IS NOT NULL;

-- name: offered
-- An archived pool has no offers.
SELECT DISTINCT pool_id
FROM offers
WHERE tenant_id = ANY (%(lineage)s) AND (tenant_id = %(tenant_id)s OR include_descendants);

-- name: take_turn_together
SELECT pg_advisory_xact_lock_shared(turn)
FROM (
    SELECT DISTINCT hashtextextended(name, 0) AS turn
    FROM unnest(%(names)s::text[]) AS name
    ORDER BY turn
) AS turns;

-- name: take_turn_alone
SELECT pg_advisory_xact_lock(turn)
FROM (
    SELECT DISTINCT hashtextextended(name, 0) AS turn
    FROM unnest(%(names)s::text[]) AS name
    ORDER BY turn
) AS turns;

-- name: enter_gates
SELECT pg_advisory_xact_lock_shared(gate)
FROM (
    SELECT DISTINCT hashtextextended(name, 1) AS gate
    FROM unnest(%(names)s::text[]) AS name
    ORDER BY gate
) AS gates;

-- name: close_gates
SELECT pg_advisory_xact_lock(gate)
FROM (
    SELECT DISTINCT hashtextextended(name, 1) AS gate
    FROM unnest(%(names)s::text[]) AS name
    ORDER BY gate
) AS gates;

-- name: close_gates_of
SELECT pg_advisory_xact_lock(gate)
FROM (
    SELECT hashtextextended(name, 1) AS gate
    FROM (
        SELECT %(tenant_id)s AS name
        UNION
        SELECT id FROM pools WHERE tenant_id = %(tenant_id)s
        UNION
        SELECT pool_id FROM offers WHERE tenant_id = %(tenant_id)s
    ) AS names
    ORDER BY gate
) AS gates;

-- name: archived
SELECT id FROM pools WHERE id = ANY (%(ids)s) AND archived;

-- name: changed
-- Pools whose users or policy may have changed in transactions from one on.
SELECT id FROM pools WHERE changed_xid >= %(since)s::text::xid8;

-- name: changed_quotas
-- Those that may have come to cover more in transactions from one on.
SELECT tenant_id, pool_id, resource FROM quotas WHERE changed_xid >= %(since)s::text::xid8;

-- name: models
SELECT id, gpu_model FROM pools WHERE id = ANY (%(ids)s);

-- name: insert_site
-- No row comes back where the same key has made the site already.
INSERT INTO sites (id, tenant_id, name, region, kind, created_at)
VALUES (%(id)s, %(tenant_id)s, %(name)s, %(region)s, %(kind)s, %(now)s)
ON CONFLICT (id) DO NOTHING
RETURNING id, tenant_id, name, region, kind, created_at;

-- name: list_sites
SELECT id, tenant_id, name, region, kind, created_at
FROM sites
WHERE tenant_id = %(tenant_id)s AND id > %(after)s
ORDER BY id
LIMIT %(limit)s;

-- name: find_site
SELECT id, tenant_id, name, region, kind, created_at
FROM sites
WHERE id = %(id)s AND tenant_id = %(tenant_id)s;

-- name: hold_site
SELECT id, tenant_id, name, region, kind, created_at
FROM sites
WHERE id = %(id)s AND tenant_id = %(tenant_id)s
FOR NO KEY UPDATE;

-- name: hold_site_to_delete
-- Waits for those who make a pool in it, and keeps others waiting.
SELECT id, tenant_id, name, region, kind, created_at
FROM sites
WHERE id = %(id)s AND tenant_id = %(tenant_id)s
FOR UPDATE;

-- name: hold_sites
-- For a pool to be made in: the one that is named, or the tenant's only one.
SELECT id, region
FROM sites
WHERE tenant_id = %(tenant_id)s AND (%(id)s::text IS NULL OR id = %(id)s)
ORDER BY id
LIMIT 10
FOR KEY SHARE;

-- name: pools_of_site
SELECT name FROM pools WHERE site_id = %(id)s ORDER BY name LIMIT %(limit)s;

-- name: update_site
UPDATE sites SET name = %(name)s, region = %(region)s WHERE id = %(id)s;

-- name: delete_site
DELETE FROM sites WHERE id = %(id)s;

-- name: select_offers
SELECT
    pool_id, tenant_id, priority, include_descendants, created_at, updated_at,
    COALESCE(
        (
            SELECT jsonb_agg(
                jsonb_build_object('resource', resource, 'max', max::text, 'used', used::text)
                ORDER BY resource
            )
            FROM quotas
            WHERE (quotas.pool_id, quotas.tenant_id) = (offers.pool_id, offers.tenant_id)
        ),
        '[]'
    ) AS quotas
FROM offers
WHERE pool_id = %(pool_id)s
    AND tenant_id > %(after)s
    AND (%(tenant_id)s::text IS NULL OR tenant_id = %(tenant_id)s)
ORDER BY tenant_id
LIMIT %(limit)s;

-- name: upsert_offer
INSERT INTO offers (
    pool_id, tenant_id, priority, include_descendants, created_at, updated_at, owner_tenant_id,
    sharing, single_tenant, holds_tenant_nodes, archived
) VALUES (
    %(pool_id)s, %(tenant_id)s, %(priority)s, %(include_descendants)s, %(now)s, %(now)s,
    %(owner_tenant_id)s, %(sharing)s, %(single_tenant)s, %(holds_tenant_nodes)s, %(archived)s
)
ON CONFLICT (pool_id, tenant_id) DO UPDATE SET
    priority = excluded.priority,
    include_descendants = excluded.include_descendants,
    updated_at = excluded.updated_at;

-- name: delete_offers
DELETE FROM offers WHERE pool_id = %(pool_id)s AND tenant_id = ANY (%(tenant_ids)s);

-- name: list_quotas
-- A tenant's own, those of others on its pools, and those above it that serve it; each way gives one
-- page at most.
SELECT tenant_id, pool_id, resource, max::text AS max, used::text AS used
FROM (
    (
        SELECT *
        FROM quotas
        WHERE tenant_id = %(caller)s
            AND pool_id >= %(after_pool)s
            AND (pool_id, tenant_id, resource)
                > (%(after_pool)s, %(after_tenant)s, %(after_resource)s)
            AND (%(pool_id)s::text IS NULL OR pool_id = %(pool_id)s)
            AND (%(tenant_id)s::text IS NULL OR tenant_id = %(tenant_id)s)
            AND (%(resource)s::text IS NULL OR resource = %(resource)s)
        ORDER BY pool_id, resource
        LIMIT %(limit)s
    )
    UNION ALL
    (
        SELECT quotas.*
        FROM pools
        JOIN quotas ON quotas.pool_id = pools.id
        WHERE pools.tenant_id = %(caller)s
            AND pools.id >= %(after_pool)s
            AND quotas.tenant_id <> %(caller)s
            AND (quotas.pool_id, quotas.tenant_id, resource)
                > (%(after_pool)s, %(after_tenant)s, %(after_resource)s)
            AND (%(pool_id)s::text IS NULL OR quotas.pool_id = %(pool_id)s)
            AND (%(tenant_id)s::text IS NULL OR quotas.tenant_id = %(tenant_id)s)
            AND (%(resource)s::text IS NULL OR resource = %(resource)s)
        ORDER BY pools.id, quotas.tenant_id, resource
        LIMIT %(limit)s
    )
    UNION ALL
    (
        SELECT serving.*
        FROM unnest(%(lineage)s::text[]) AS above
        CROSS JOIN LATERAL (
            SELECT quotas.*
            FROM offers
            JOIN quotas ON (quotas.tenant_id, quotas.pool_id) = (offers.tenant_id, offers.pool_id)
            WHERE offers.tenant_id = above
                AND offers.include_descendants
                AND offers.owner_tenant_id <> %(caller)s
                AND offers.pool_id >= %(after_pool)s
                AND (quotas.pool_id, quotas.tenant_id, resource)
                    > (%(after_pool)s, %(after_tenant)s, %(after_resource)s)
                AND (%(pool_id)s::text IS NULL OR quotas.pool_id = %(pool_id)s)
                AND (%(tenant_id)s::text IS NULL OR quotas.tenant_id = %(tenant_id)s)
                AND (%(resource)s::text IS NULL OR resource = %(resource)s)
            ORDER BY offers.pool_id, resource
            LIMIT %(limit)s
        ) AS serving
        WHERE above <> %(caller)s
    )
) AS visible
ORDER BY pool_id, tenant_id, resource
LIMIT %(limit)s;

-- name: find_quota
-- For its tenant and those above it, for those below that use it, and for the owner of the pool.
SELECT tenant_id, pool_id, resource, max::text AS max, used::text AS used
FROM quotas
WHERE (pool_id, tenant_id, resource) = (%(pool_id)s, %(tenant_id)s, %(resource)s)
    AND (
        %(caller)s IN (
            SELECT unnest(ancestors) FROM tenants WHERE tenants.id = quotas.tenant_id
            UNION ALL
            SELECT tenant_id FROM pools WHERE pools.id = quotas.pool_id
        )
        OR EXISTS (
            SELECT FROM offers
            WHERE (offers.pool_id, offers.tenant_id) = (quotas.pool_id, quotas.tenant_id)
                AND offers.tenant_id = ANY (%(lineage)s)
                AND include_descendants
        )
    );

-- name: quota
SELECT tenant_id, pool_id, resource, max::text AS max, used::text AS used
FROM quotas
WHERE (pool_id, tenant_id, resource) = (%(pool_id)s, %(tenant_id)s, %(resource)s);

-- name: is_offered
SELECT 1 FROM offers WHERE (pool_id, tenant_id) = (%(pool_id)s, %(tenant_id)s);

-- name: pools_with_quota
SELECT DISTINCT pool_id FROM quotas WHERE tenant_id = %(tenant_id)s;

-- name: lock_quotas_of
SELECT 1
FROM quotas
JOIN unnest(%(tenants)s::text[], %(pools)s::text[]) AS of (tenant_id, pool_id)
    USING (tenant_id, pool_id)
ORDER BY tenant_id, pool_id, resource
FOR NO KEY UPDATE OF quotas;

-- name: lower_quotas
-- least() skips NULL: what was unlimited is limited to what is used.
UPDATE quotas
SET max = least(max, used)
FROM unnest(%(tenants)s::text[], %(pools)s::text[]) AS of (tenant_id, pool_id)
WHERE (quotas.tenant_id, quotas.pool_id) = (of.tenant_id, of.pool_id)
RETURNING quotas.tenant_id, quotas.pool_id, resource, max;

-- name: set_quotas
INSERT INTO quotas (tenant_id, pool_id, resource, max)
SELECT %(tenant_id)s, %(pool_id)s, resource, max
FROM unnest(%(resources)s::text[], %(limits)s::numeric[]) AS new (resource, max)
ORDER BY resource
ON CONFLICT (tenant_id, pool_id, resource) DO UPDATE SET
    max = excluded.max,
    changed_xid = pg_current_xact_id();

-- name: quotas
SELECT tenant_id, pool_id, resource, max, used
FROM quotas
WHERE tenant_id = ANY (%(tenant_ids)s) AND pool_id = ANY (%(pool_ids)s);

-- name: lock_quotas
SELECT 1
FROM quotas
JOIN unnest(%(tenants)s::text[], %(pools)s::text[], %(resources)s::text[])
    AS wanted (tenant_id, pool_id, resource) USING (tenant_id, pool_id, resource)
ORDER BY tenant_id, pool_id, resource
FOR NO KEY UPDATE OF quotas;

-- name: charge
-- Giving back is never refused; a charge is, when the limit does not cover it.
-- Only what gives back is news to who waits for a quota.
UPDATE quotas
SET used = used + amount,
    changed_xid = CASE WHEN amount < 0 THEN pg_current_xact_id() ELSE changed_xid END
FROM unnest(%(tenants)s::text[], %(pools)s::text[], %(resources)s::text[], %(amounts)s::numeric[])
    AS change (tenant_id, pool_id, resource, amount)
WHERE (quotas.tenant_id, quotas.pool_id, quotas.resource)
        = (change.tenant_id, change.pool_id, change.resource)
    AND (amount < 0 OR max IS NULL OR used + amount <= max)
RETURNING quotas.tenant_id, quotas.pool_id, quotas.resource;
