-- name: lock_tenant
-- Held to the end: one webhook at a time is made for a tenant, and none while it is being deleted.
SELECT id FROM tenants WHERE id = %(tenant_id)s AND deleted_at IS NULL FOR NO KEY UPDATE;

-- name: insert
-- It is told what ends from now on: what had not ended when it was made is after the horizon.
INSERT INTO webhooks (
    id, tenant_id, name, url, types, enabled, read_xid, read_id, created_at, updated_at
) VALUES (
    %(id)s, %(tenant_id)s, %(name)s, %(url)s, %(types)s, %(enabled)s,
    pg_snapshot_xmin(pg_current_snapshot()), 0, %(now)s, %(now)s
)
ON CONFLICT (id) DO NOTHING
RETURNING id;

-- name: select
SELECT id, tenant_id, name, url, types, enabled, secret_version, version, created_at, updated_at,
    coalesce(counts.pending, 0) AS pending, coalesce(counts.dead, 0) AS dead
FROM webhooks
LEFT JOIN LATERAL (
    SELECT
        count(*) FILTER (WHERE state = 'pending')::int AS pending,
        count(*) FILTER (WHERE state = 'dead')::int AS dead
    FROM deliveries
    WHERE webhook_id = webhooks.id
) AS counts ON true
WHERE tenant_id = %(tenant_id)s
    AND (%(id)s::text IS NULL OR id = %(id)s)
    AND id > %(after)s
ORDER BY id
LIMIT %(limit)s;

-- name: lock
SELECT id, tenant_id, name, url, types, enabled, secret_version, version
FROM webhooks
WHERE id = %(id)s AND tenant_id = %(tenant_id)s
FOR NO KEY UPDATE;

-- name: lock_all
SELECT id, tenant_id, name, url, types, enabled, secret_version, version
FROM webhooks
WHERE tenant_id = %(tenant_id)s
ORDER BY id
FOR NO KEY UPDATE;

-- name: update
-- One that is enabled again is told what ends from now on, as a new one is.
UPDATE webhooks
SET url = %(url)s, types = %(types)s, enabled = %(enabled)s, secret_version = %(secret_version)s,
    version = version + 1, updated_at = %(now)s,
    read_xid = CASE WHEN enabled OR NOT %(enabled)s THEN read_xid
        ELSE pg_snapshot_xmin(pg_current_snapshot()) END,
    read_id = CASE WHEN enabled OR NOT %(enabled)s THEN read_id ELSE 0 END
WHERE id = %(id)s;

-- name: delete
DELETE FROM webhooks WHERE id = %(id)s;

-- name: clear_pending
DELETE FROM deliveries
USING webhooks
WHERE webhooks.id = webhook_id AND webhooks.tenant_id = %(tenant_id)s AND state = 'pending';

-- name: deliveries
SELECT deliveries.id, webhook_id, state, attempts, next_at, last_status, last_error, created_at,
    events.xid || '.' || events.id AS position, events.id AS event_id, events.type,
    events.tenant_id, events.subject, events.actor, events.request_id, events.data,
    events.occurred_at
FROM deliveries
JOIN events ON events.id = deliveries.event_id
WHERE webhook_id = %(webhook_id)s
    AND (%(id)s::bigint IS NULL OR deliveries.id = %(id)s)
    AND (%(state)s::text IS NULL OR state = %(state)s)
    AND deliveries.id > %(after)s
ORDER BY deliveries.id
LIMIT %(limit)s;

-- name: resend
UPDATE deliveries
SET state = 'pending', attempts = 0, next_at = %(now)s, updated_at = %(now)s
WHERE id = %(id)s AND webhook_id = %(webhook_id)s AND state = 'dead'
RETURNING event_id;

-- name: queue
-- What happened since becomes deliveries, and the place up to where moves on, in one statement. A
-- place that nothing was found after stays: a write for no news would be news to the next reader.
WITH reading AS MATERIALIZED (
    SELECT id, tenant_id, types, read_xid, read_id
    FROM webhooks
    WHERE enabled AND read_xid < %(horizon)s::text::xid8
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
), found AS MATERIALIZED (
    SELECT reading.id AS webhook_id, reading.tenant_id, event.id, event.xid,
        cardinality(types) = 0
            OR EXISTS (SELECT FROM unnest(types) AS start WHERE starts_with(event.type, start))
            AS wanted
    FROM reading
    CROSS JOIN LATERAL (
        SELECT id, xid, type
        FROM events
        WHERE tenant_id = reading.tenant_id
            AND (xid, id) > (read_xid, read_id)
            AND xid < %(horizon)s::text::xid8
        ORDER BY xid, id
        LIMIT %(limit)s
    ) AS event
), queued AS (
    INSERT INTO deliveries (
        tenant_id, webhook_id, event_id, state, next_at, created_at, updated_at
    )
    SELECT tenant_id, webhook_id, id, 'pending', %(now)s, %(now)s, %(now)s
    FROM found
    WHERE wanted
    ORDER BY xid, id
    ON CONFLICT ON CONSTRAINT deliveries_event_key DO NOTHING
    RETURNING id
), moved AS (
    UPDATE webhooks
    SET read_xid = last.xid, read_id = last.id
    FROM (
        SELECT DISTINCT ON (webhook_id) webhook_id, xid, id
        FROM found
        ORDER BY webhook_id, xid DESC, id DESC
    ) AS last
    WHERE webhooks.id = last.webhook_id
    RETURNING webhooks.id
)
SELECT (SELECT count(*) FROM queued)::int AS queued, (SELECT count(*) FROM found)::int AS found;

-- name: due
-- The webhooks that something is due to, those first that wait for longest.
SELECT webhooks.id
FROM webhooks
CROSS JOIN LATERAL (
    SELECT next_at
    FROM deliveries
    WHERE webhook_id = webhooks.id AND state = 'pending'
    ORDER BY next_at
    LIMIT 1
) AS first
WHERE enabled AND first.next_at <= %(now)s AND id <> ALL (%(except)s::text[])
ORDER BY first.next_at, id
LIMIT %(limit)s;

-- name: claim
-- Nobody else sends these until next_at comes again, which it does where the one who claims dies.
WITH due AS (
    SELECT id
    FROM deliveries
    WHERE webhook_id = %(webhook_id)s AND state = 'pending' AND next_at <= %(now)s
        AND (SELECT enabled FROM webhooks WHERE id = %(webhook_id)s)
    ORDER BY next_at, id
    LIMIT %(limit)s
    FOR NO KEY UPDATE SKIP LOCKED
), claimed AS (
    UPDATE deliveries
    SET next_at = %(until)s, updated_at = %(now)s
    FROM due
    WHERE deliveries.id = due.id
    RETURNING deliveries.id, webhook_id, event_id, attempts
)
SELECT claimed.id AS delivery_id, attempts, url, secret_version,
    events.xid || '.' || events.id AS position, events.id, events.type, events.tenant_id,
    events.subject, events.actor, events.request_id, events.data, events.occurred_at
FROM claimed
JOIN webhooks ON webhooks.id = claimed.webhook_id
JOIN events ON events.id = claimed.event_id
ORDER BY claimed.id;

-- name: delivered
DELETE FROM deliveries WHERE id = %(id)s;

-- name: failed
-- Only while the claim is ours: another one's claim has its own end.
UPDATE deliveries
SET state = %(state)s, attempts = attempts + 1, next_at = %(next_at)s, last_status = %(status)s,
    last_error = %(error)s, updated_at = %(now)s
WHERE id = %(id)s AND next_at = %(until)s;
