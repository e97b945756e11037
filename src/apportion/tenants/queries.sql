-- name: find_token
SELECT id, tenant_id
FROM tokens
WHERE hash = %(hash)s
    AND revoked_at IS NULL
    AND (expires_at IS NULL OR expires_at > %(now)s);

-- name: ensure_root
WITH root AS (
    INSERT INTO tenants (id, name, created_at)
    VALUES (%(id)s, 'Root', %(now)s)
    ON CONFLICT DO NOTHING
    RETURNING id
)
INSERT INTO sites (id, tenant_id, name, region, created_at)
SELECT %(site)s, id, 'main', 'local', %(now)s FROM root;

-- name: insert_token
INSERT INTO tokens (id, tenant_id, name, hash, created_at)
VALUES (%(id)s, %(tenant_id)s, %(name)s, %(hash)s, %(now)s);
