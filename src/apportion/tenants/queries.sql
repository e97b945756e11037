-- name: ancestors
SELECT id, ancestors FROM tenants WHERE id = ANY (%(ids)s) AND deleted_at IS NULL;

-- name: insert_tenant
INSERT INTO tenants (id, parent_id, ancestors, name, created_at)
VALUES (%(id)s, %(parent_id)s, %(ancestors)s, %(name)s, %(now)s)
RETURNING id, name, parent_id, ancestors, created_at, deleted_at;

-- name: find_tenant
-- Within the tree of the tenant that asks, deleted ones too.
SELECT id, name, parent_id, ancestors, created_at, deleted_at
FROM tenants
WHERE id = %(id)s AND %(above)s = ANY (ancestors);

-- name: lock_tenant
SELECT id, name, parent_id, ancestors, created_at, deleted_at
FROM tenants
WHERE id = %(id)s AND %(above)s = ANY (ancestors)
FOR NO KEY UPDATE;

-- name: list_tenants
SELECT id, name, parent_id, ancestors, created_at, deleted_at
FROM tenants
WHERE ancestors @> ARRAY[%(above)s]
    AND id > %(after)s
    AND (%(parent_id)s::text IS NULL OR parent_id = %(parent_id)s)
    AND (%(name)s::text IS NULL OR name = %(name)s)
    AND (deleted_at IS NULL OR %(include_deleted)s)
ORDER BY id
LIMIT %(limit)s;

-- name: rename_tenant
UPDATE tenants SET name = %(name)s WHERE id = %(id)s
RETURNING id, name, parent_id, ancestors, created_at, deleted_at;

-- name: close_tenant
-- Waits for all who make something for the tenant, and keeps others waiting (see hold_tenant).
SELECT id, name, parent_id, ancestors, created_at, deleted_at
FROM tenants
WHERE id = %(id)s AND %(above)s = ANY (ancestors)
FOR UPDATE;

-- name: living_children
SELECT count(*)::int AS count, (array_agg(id ORDER BY id))[:10] AS first
FROM tenants
WHERE parent_id = %(id)s AND deleted_at IS NULL;

-- name: delete_tenant
UPDATE tenants SET deleted_at = %(now)s WHERE id = %(id)s
RETURNING id, name, parent_id, ancestors, created_at, deleted_at;

-- name: find_token
SELECT * FROM tokens WHERE tenant_id = %(tenant_id)s AND id = %(id)s;

-- name: lock_token
SELECT * FROM tokens WHERE tenant_id = %(tenant_id)s AND id = %(id)s FOR NO KEY UPDATE;

-- name: list_tokens
SELECT *
FROM tokens
WHERE tenant_id = %(tenant_id)s
    AND id > %(after)s
    AND (%(role)s::text IS NULL OR role = %(role)s)
    AND (
        %(state)s::text IS NULL
        OR %(state)s = CASE
            WHEN revoked_at IS NOT NULL THEN 'revoked'
            WHEN expires_at <= %(now)s THEN 'expired'
            ELSE 'active'
        END
    )
ORDER BY id
LIMIT %(limit)s;

-- name: rotate_token
-- The columns on the right are those from before: the secret that still works is the last one.
UPDATE tokens
SET hash = %(hash)s, key_id = %(key_id)s, previous_until = %(until)s,
    previous_hash = CASE WHEN %(until)s::timestamptz IS NOT NULL THEN hash END
WHERE id = %(id)s
RETURNING *;

-- name: revoke_token
UPDATE tokens SET revoked_at = %(now)s WHERE id = %(id)s RETURNING *;

-- name: revoke_tokens
UPDATE tokens SET revoked_at = %(now)s
WHERE tenant_id = %(tenant_id)s AND revoked_at IS NULL
RETURNING *;

-- name: queue_for_policies
-- Those who add policies to one tenant do it one after the other, so that they can be counted.
SELECT id FROM tenants WHERE id = %(tenant_id)s AND deleted_at IS NULL FOR NO KEY UPDATE;

-- name: count_policies
SELECT count(*)::int AS count
FROM access_policies
WHERE tenant_id = %(tenant_id)s AND id <> %(id)s;

-- name: insert_policy
-- No row comes back where the same key has made the policy already.
INSERT INTO access_policies (id, tenant_id, name, description, text, created_at, updated_at)
VALUES (%(id)s, %(tenant_id)s, %(name)s, %(description)s, %(text)s, %(now)s, %(now)s)
ON CONFLICT (id) DO NOTHING
RETURNING *;

-- name: find_policy
SELECT * FROM access_policies WHERE tenant_id = %(tenant_id)s AND id = %(id)s;

-- name: lock_policy
SELECT * FROM access_policies WHERE tenant_id = %(tenant_id)s AND id = %(id)s FOR UPDATE;

-- name: list_policies
SELECT *
FROM access_policies
WHERE tenant_id = %(tenant_id)s AND id > %(after)s
ORDER BY id
LIMIT %(limit)s;

-- name: update_policy
UPDATE access_policies
SET text = %(text)s, description = %(description)s, version = version + 1, updated_at = %(now)s
WHERE id = %(id)s
RETURNING *;

-- name: delete_policy
DELETE FROM access_policies WHERE id = %(id)s;

-- name: delete_policies
DELETE FROM access_policies WHERE tenant_id = %(tenant_id)s RETURNING *;

-- name: policies_in_effect
SELECT id, tenant_id, name, text
FROM access_policies
WHERE tenant_id = ANY (%(tenants)s)
ORDER BY id;
