-- name: insert
-- No row comes back where the same key has made the pool already, or is making it now.
INSERT INTO pools (
    id, tenant_id, site_id, name, class, gpu_model, sharing, agent, provider_account_id,
    policy, replicas, shares, created_at
) VALUES (
    %(id)s, %(tenant_id)s, %(site_id)s, %(name)s, %(class)s, %(gpu_model)s, %(sharing)s, %(agent)s,
    %(provider_account_id)s, %(policy)s, %(replicas)s, %(shares)s, %(now)s
)
ON CONFLICT (id) DO NOTHING
RETURNING id;

-- name: select
-- Numbers of quotas travel as text: JSON numbers would pass through floating point.
SELECT
    pools.*,
    (SELECT region FROM sites WHERE sites.id = pools.site_id) AS region,
    COALESCE(
        (
            SELECT jsonb_agg(
                jsonb_build_object('resource', resource, 'max', max::text, 'used', used::text)
                ORDER BY resource
            )
            FROM quotas
            WHERE quotas.pool_id = pools.id AND quotas.tenant_id = %(tenant_id)s
        ),
        '[]'
    ) AS quotas
FROM pools
WHERE tenant_id = %(tenant_id)s
    AND (%(id)s::text IS NULL OR id = %(id)s)
    AND id > %(after)s
    AND (%(name)s::text IS NULL OR name = %(name)s)
    AND (%(model)s::text IS NULL OR lower(gpu_model) = lower(%(model)s))
    AND (%(sharing)s::text IS NULL OR sharing = %(sharing)s)
ORDER BY id
LIMIT %(limit)s;

-- name: records
-- Pools that a tenant may use: its own, and those offered to it or, with descendants, to one above it.
-- lineage is the tenant and those above it, itself first: the nearest offer is the one that counts.
SELECT
    pools.id, pools.tenant_id, pools.name, pools.class, pools.gpu_model, pools.sharing, pools.policy,
    sites.region,
    CASE WHEN pools.tenant_id = %(tenant_id)s THEN pools.tenant_id ELSE offer.tenant_id END
        AS quota_tenant_id
FROM pools
JOIN sites ON sites.id = pools.site_id
JOIN tenants ON tenants.id = %(tenant_id)s AND tenants.deleted_at IS NULL
LEFT JOIN LATERAL (
    SELECT tenant_id
    FROM offers
    WHERE pool_id = pools.id AND tenant_id = ANY (%(lineage)s)
        AND (tenant_id = %(tenant_id)s OR include_descendants)
    ORDER BY array_position(%(lineage)s, tenant_id)
    LIMIT 1
) AS offer ON true
WHERE pools.id = ANY (%(ids)s) AND NOT pools.archived
    AND (pools.tenant_id = %(tenant_id)s OR offer.tenant_id IS NOT NULL);

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

-- name: models
SELECT id, gpu_model FROM pools WHERE id = ANY (%(ids)s);

-- name: sites
SELECT id, tenant_id, name, region, kind, created_at
FROM sites
WHERE tenant_id = %(tenant_id)s
ORDER BY id;

-- name: list_sites
SELECT id, tenant_id, name, region, kind, created_at
FROM sites
WHERE tenant_id = %(tenant_id)s AND id > %(after)s
ORDER BY id
LIMIT %(limit)s;

-- name: list_quotas
SELECT pool_id, resource, max::text AS max, used::text AS used
FROM quotas
WHERE tenant_id = %(tenant_id)s
    AND (pool_id, resource) > (%(after_pool)s, %(after_resource)s)
    AND (%(pool_id)s::text IS NULL OR pool_id = %(pool_id)s)
ORDER BY pool_id, resource
LIMIT %(limit)s;

-- name: set_quotas
INSERT INTO quotas (tenant_id, pool_id, resource, max)
SELECT %(tenant_id)s, %(pool_id)s, resource, max
FROM unnest(%(resources)s::text[], %(limits)s::numeric[]) AS new (resource, max)
ORDER BY resource
ON CONFLICT (tenant_id, pool_id, resource) DO UPDATE SET max = excluded.max;

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
UPDATE quotas
SET used = used + amount
FROM unnest(%(tenants)s::text[], %(pools)s::text[], %(resources)s::text[], %(amounts)s::numeric[])
    AS change (tenant_id, pool_id, resource, amount)
WHERE (quotas.tenant_id, quotas.pool_id, quotas.resource)
        = (change.tenant_id, change.pool_id, change.resource)
    AND (amount < 0 OR max IS NULL OR used + amount <= max)
RETURNING quotas.tenant_id, quotas.pool_id, quotas.resource;
