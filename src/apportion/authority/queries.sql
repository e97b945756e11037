-- name: find_tokens
-- For each that is asked for (at tells which): the token, the tenant that is acted for (NULL where the
-- token's tenant is not above it), and the policies that hold there: the tenant's own and those of all
-- tenants above it.
SELECT
    asked.at, tokens.id, tokens.tenant_id, tokens.role, tokens.actions, tokens.expires_at, tokens.last_used_at,
    acting.id AS acting, acting.ancestors,
    COALESCE(
        (
            SELECT jsonb_agg(
                jsonb_build_object('id', id, 'tenant_id', tenant_id, 'name', name, 'text', text)
                ORDER BY id
            )
            FROM access_policies
            WHERE tenant_id = ANY (acting.ancestors)
        ),
        '[]'
    ) AS policies
FROM json_to_recordset(%(asked)s::json) AS asked (at int, hash bytea, tenant_id text)
JOIN tokens
    ON (tokens.hash = asked.hash OR (previous_hash = asked.hash AND previous_until > %(now)s))
    AND revoked_at IS NULL
    AND (expires_at IS NULL OR expires_at > %(now)s)
JOIN tenants AS home ON home.id = tokens.tenant_id AND home.deleted_at IS NULL
LEFT JOIN tenants AS acting
    ON acting.id = coalesce(asked.tenant_id, tokens.tenant_id)
    AND acting.deleted_at IS NULL
    AND tokens.tenant_id = ANY (acting.ancestors);

-- name: find_nodes
-- The keys of nodes, and whose pools those are in.
SELECT nodes.uid, public_key, pools.tenant_id, owner.ancestors
FROM nodes
JOIN pools ON pools.id = nodes.pool_id
JOIN tenants AS owner ON owner.id = pools.tenant_id AND owner.deleted_at IS NULL
WHERE nodes.uid = ANY (%(ids)s) AND public_key IS NOT NULL AND revoked_at IS NULL;

-- name: hold_tenant
-- Waits for a deletion under way, and then finds nothing.
SELECT ancestors FROM tenants WHERE id = %(id)s AND deleted_at IS NULL FOR KEY SHARE;

-- name: note_use
-- Never waits: when somebody else has a row, the use is noted by them.
UPDATE tokens SET last_used_at = %(now)s
WHERE id IN (SELECT id FROM tokens WHERE id = ANY (%(ids)s) FOR NO KEY UPDATE SKIP LOCKED);

-- name: ensure_root
WITH root AS (
    INSERT INTO tenants (id, parent_id, ancestors, name, created_at)
    VALUES (%(id)s, NULL, ARRAY[%(id)s], 'Root', %(now)s)
    ON CONFLICT DO NOTHING
    RETURNING id
)
INSERT INTO sites (id, tenant_id, name, region, kind, created_at)
SELECT %(site)s, id, 'main', 'local', 'shared', %(now)s FROM root;

-- name: insert_token
INSERT INTO tokens (
    id, tenant_id, name, role, actions, hash, key_id, created_by, created_at, expires_at
) VALUES (
    %(id)s, %(tenant_id)s, %(name)s, %(role)s, %(actions)s, %(hash)s, %(key_id)s, %(created_by)s,
    %(now)s, %(expires_at)s
)
ON CONFLICT (id) DO NOTHING;

-- name: foreign_tokens
SELECT count(*)::int AS count
FROM tokens
WHERE key_id NOT IN (%(key_id)s, 'none') AND revoked_at IS NULL
    AND (expires_at IS NULL OR expires_at > %(now)s);
