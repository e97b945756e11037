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
    AND xid < coalesce(%(before)s::text::xid8, pg_snapshot_xmin(pg_current_snapshot()))
    AND (%(subject)s::text IS NULL OR subject = %(subject)s)
    AND (%(type_prefix)s::text IS NULL OR starts_with(type, %(type_prefix)s))
ORDER BY xid, id
LIMIT %(limit)s;

-- name: audit
SELECT xid || '.' || id AS id, occurred_at AS time, tenant_id, actor, request_id, type AS action,
    subject, before, after
FROM events
WHERE tenant_id = %(tenant_id)s
    AND (before IS NOT NULL OR after IS NOT NULL)
    AND (xid, id) < (%(xid)s::text::xid8, %(id)s::bigint)
    AND xid < pg_snapshot_xmin(pg_current_snapshot())
    AND (%(subject)s::text IS NULL OR subject = %(subject)s)
    AND (%(actor)s::text IS NULL OR actor = %(actor)s)
    AND (%(action_prefix)s::text IS NULL OR starts_with(type, %(action_prefix)s))
    AND (%(request_id)s::text IS NULL OR request_id = %(request_id)s)
    AND (%(since)s::timestamptz IS NULL OR occurred_at >= %(since)s)
    AND (%(until)s::timestamptz IS NULL OR occurred_at < %(until)s)
ORDER BY events.xid DESC, events.id DESC
LIMIT %(limit)s;

-- name: horizon
SELECT pg_snapshot_xmin(pg_current_snapshot())::text AS horizon;
