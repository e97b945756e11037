-- name: append
INSERT INTO events (tenant_id, type, subject, actor, request_id, data, before, after, occurred_at)
SELECT tenant_id, type, subject, actor, request_id, data, before, after, %(now)s
FROM json_to_recordset(%(rows)s::json)
    AS new (
        tenant_id text, type text, subject text, actor text, request_id text, data jsonb,
        before jsonb, after jsonb
    );

-- name: list
SELECT xid || '.' || id AS position, id, type, tenant_id, subject, actor, request_id, data,
    occurred_at
FROM events
WHERE tenant_id = %(tenant_id)s
    AND (xid, id) > (%(xid)s::text::xid8, %(id)s::bigint)
    AND xid < pg_snapshot_xmin(pg_current_snapshot())
    AND (%(subject)s::text IS NULL OR subject = %(subject)s)
    AND (%(type_prefix)s::text IS NULL OR starts_with(type, %(type_prefix)s))
ORDER BY xid, id
LIMIT %(limit)s;
