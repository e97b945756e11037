-- name: ancestors
SELECT id, ancestors FROM tenants WHERE id = ANY (%(ids)s) AND deleted_at IS NULL;
