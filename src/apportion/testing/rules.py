"""What must hold of tenants, pools, offers, quotas and events, each as a query for what breaks it.

Every query answers with a subject and a message for each break; the auditor runs them all on one
snapshot. They read what things are from where it is written first (a pool's policy, its nodes, the
tree of tenants), never from the columns that repeat it for the database's own rules.
"""

from typing import Final, LiteralString

Rule = tuple[str, LiteralString]

_TENANTS: Final[tuple[Rule, ...]] = (
    (
        "tree",
        """
        SELECT tenant.id, 'its way from root is not that of the tenant above it'
        FROM tenants AS tenant
        LEFT JOIN tenants AS parent ON parent.id = tenant.parent_id
        WHERE tenant.ancestors <> coalesce(parent.ancestors, '{}') || tenant.id""",
    ),
    (
        "tree",
        """
        SELECT tenant.id, 'lives under ' || parent.id || ', which is deleted'
        FROM tenants AS tenant
        JOIN tenants AS parent ON parent.id = tenant.parent_id
        WHERE tenant.deleted_at IS NULL AND parent.deleted_at IS NOT NULL""",
    ),
    (
        "deleted",
        """
        SELECT id, 'is ' || state || ', and its tenant is deleted'
        FROM reservations
        JOIN (SELECT id AS tenant_id FROM tenants WHERE deleted_at IS NOT NULL) AS gone
            USING (tenant_id)
        WHERE state NOT IN ('ended', 'failed')""",
    ),
    (
        "deleted",
        """
        SELECT pools.id, 'takes work, and its owner is deleted'
        FROM pools JOIN tenants ON tenants.id = tenant_id
        WHERE deleted_at IS NOT NULL AND archived_at IS NULL""",
    ),
    (
        "deleted",
        """
        SELECT pool_id, 'is offered to ' || tenant_id || ', which is deleted'
        FROM offers JOIN tenants ON tenants.id = tenant_id
        WHERE deleted_at IS NOT NULL""",
    ),
    (
        "deleted",
        """
        SELECT tokens.id, 'still opens the door, and its tenant is deleted'
        FROM tokens JOIN tenants ON tenants.id = tenant_id
        WHERE deleted_at IS NOT NULL AND revoked_at IS NULL""",
    ),
    (
        "deleted",
        """
        SELECT webhooks.id, 'is told of a tenant that is deleted'
        FROM webhooks JOIN tenants ON tenants.id = tenant_id
        WHERE deleted_at IS NOT NULL AND enabled""",
    ),
)

# Who may be offered a pool, by what the pool and its nodes are.
_OFFERS: Final[tuple[Rule, ...]] = (
    (
        "offered",
        """
        SELECT pools.id, 'is ' || sharing || ', and offered to ' || offered.tenant_id
        FROM (SELECT pool_id, tenant_id FROM offers) AS offered
        JOIN pools ON pools.id = pool_id
        WHERE sharing IN ('timeslice', 'mps')""",
    ),
    (
        "offered",
        """
        SELECT pools.id, 'is archived, and offered to ' || offered.tenant_id
        FROM (SELECT pool_id, tenant_id FROM offers) AS offered
        JOIN pools ON pools.id = pool_id
        WHERE archived_at IS NOT NULL""",
    ),
    (
        "offered",
        """
        SELECT pool_id, 'is offered, and holds nodes of the tenant ' || min(nodes.tenant_id)
        FROM (SELECT DISTINCT pool_id FROM offers) AS offered
        JOIN nodes USING (pool_id)
        WHERE nodes.tenant_id <> 'root'
        GROUP BY pool_id""",
    ),
    (
        "offered",
        """
        SELECT pools.id, 'is for a single tenant, and offered to more'
        FROM pools JOIN offers ON pool_id = pools.id
        WHERE policy -> 'singleTenant' = 'true'
        GROUP BY pools.id
        HAVING count(*) > 1 OR bool_or(include_descendants)""",
    ),
    (
        "offered",
        """
        SELECT pool_id, 'is offered to ' || tenants.id || ', which is not below its owner'
        FROM offers
        JOIN pools ON pools.id = pool_id
        JOIN tenants ON tenants.id = offers.tenant_id
        WHERE tenants.id = pools.tenant_id OR NOT pools.tenant_id = ANY (ancestors)""",
    ),
    (
        "offered",
        """
        SELECT pool_id, 'is offered to ' || tenant_id || ' with the priority ' || priority
        FROM offers WHERE priority NOT BETWEEN -1000 AND 1000""",
    ),
    (
        "terms",
        """
        SELECT pool_id, 'is not what its offer to ' || offers.tenant_id || ' says it is'
        FROM offers JOIN pools ON pools.id = pool_id
        WHERE (owner_tenant_id, offers.sharing, offers.single_tenant, offers.holds_tenant_nodes,
                offers.archived)
            IS DISTINCT FROM (pools.tenant_id, pools.sharing, pools.single_tenant,
                pools.holds_tenant_nodes, pools.archived)""",
    ),
    (
        "terms",
        """
        SELECT id, 'is not what its policy says it is'
        FROM pools
        WHERE single_tenant <> coalesce(policy -> 'singleTenant' = 'true', false)
            OR to_jsonb(replicas) IS DISTINCT FROM nullif(policy -> 'replicas', 'null')
            OR to_jsonb(shares) IS DISTINCT FROM nullif(policy -> 'shares', 'null')""",
    ),
    (
        "terms",
        """
        SELECT id, 'is wrong about whether it holds nodes of tenants'
        FROM pools
        WHERE holds_tenant_nodes <> EXISTS (
            SELECT FROM nodes WHERE pool_id = pools.id AND nodes.tenant_id <> 'root'
        )""",
    ),
)

_QUOTAS: Final[tuple[Rule, ...]] = (
    (
        "counted",
        """
        SELECT pool_id, 'has no count of the GPU equivalents of ' || tenant_id
        FROM (
            SELECT pool_id, tenant_id FROM offers
            UNION
            SELECT pool_id, tenant_id FROM quotas
            EXCEPT
            SELECT pool_id, tenant_id FROM quotas WHERE resource = 'gpuEquivalents'
        ) AS uncounted""",
    ),
    # What was in use when the pool was archived or the offer withdrawn is at most what its tenant
    # has or gave back since: a minute's grace, because two that commit at once read two clocks.
    (
        "withdrawn",
        """
        WITH strangers AS (
            SELECT quotas.*, coalesce(
                least(
                    pools.archived_at,
                    tenants.deleted_at,
                    (
                        SELECT max(occurred_at) FROM events
                        WHERE subject = quotas.pool_id AND type = 'pool.unoffered'
                            AND events.tenant_id = quotas.tenant_id
                    )
                ),
                '-infinity'
            ) - interval '1 minute' AS withdrawn_at
            FROM quotas
            JOIN pools ON pools.id = pool_id AND pools.tenant_id <> quotas.tenant_id
            JOIN tenants ON tenants.id = quotas.tenant_id
            WHERE NOT EXISTS (
                SELECT FROM offers
                WHERE (pool_id, offers.tenant_id) = (quotas.pool_id, quotas.tenant_id)
            )
        )
        SELECT pool_id, tenant_id || ' may have ' || coalesce(max::text, 'any amount of') || ' '
            || resource || ', and had ' || had || ' when it was withdrawn'
        FROM strangers
        CROSS JOIN LATERAL (
            SELECT coalesce(sum((charges ->> resource)::numeric), 0) AS had
            FROM reservations
            WHERE (reservations.pool_id, charged_tenant_id)
                    = (strangers.pool_id, strangers.tenant_id)
                AND (state IN ('placed', 'active', 'ending') OR updated_at >= withdrawn_at)
        ) AS charged
        WHERE max IS NULL OR max > had""",
    ),
    # A limit may come to lie below what is used, and then nothing more is charged to it. Both hold
    # the quota's row, so the numbers of their events say which came first.
    (
        "limited",
        """
        SELECT quotas.pool_id, quotas.tenant_id || ' uses ' || used || ' ' || resource || ' of '
            || max || ', and ' || placed.subject || ' was placed after the limit was set'
        FROM quotas
        CROSS JOIN LATERAL (
            SELECT coalesce(max(id), 0) AS set_at
            FROM events
            WHERE subject = quotas.pool_id AND events.tenant_id = quotas.tenant_id AND (
                type IN ('pool.created', 'pool.offered', 'pool.unoffered', 'pool.archived')
                OR type = 'quota.updated' AND data ->> 'resource' = resource
            )
        ) AS limits
        JOIN reservations ON reservations.pool_id = quotas.pool_id
        JOIN events AS placed ON placed.subject = reservations.id
            AND placed.type = 'reservation.placed' AND placed.id > set_at
        WHERE used > max AND charged_tenant_id = quotas.tenant_id AND charges ? resource
            AND state IN ('placed', 'active', 'ending')""",
    ),
    (
        "charged",
        """
        SELECT id, 'waits, and is charged'
        FROM reservations
        WHERE state = 'pending' AND (charges <> '{}' OR charged_tenant_id IS NOT NULL)""",
    ),
    (
        "charged",
        """
        SELECT reservations.id,
            'is charged to ' || charged_tenant_id || ', which is no tenant above its own'
        FROM reservations
        JOIN tenants ON tenants.id = tenant_id
        WHERE NOT charged_tenant_id = ANY (ancestors)""",
    ),
)

_TOLD: Final[tuple[Rule, ...]] = (
    (
        "explained",
        """
        SELECT id, 'waits, and does not say why or since when'
        FROM reservations
        WHERE state = 'pending'
            AND NOT coalesce(reason ->> 'code' <> '' AND reason ->> 'since' ~ '^\\d{4}-', false)""",
    ),
    (
        "explained",
        """
        SELECT id, 'waits, and its reasons count ' || coalesce(counted, 0) || ' of '
            || (reason ->> 'nodes') || ' nodes'
        FROM reservations
        CROSS JOIN LATERAL (
            SELECT sum((each ->> 'count')::int) AS counted
            FROM jsonb_array_elements(reason -> 'reasons') AS each
        ) AS counts
        WHERE state = 'pending' AND reason ? 'nodes'
            AND coalesce(counted, 0) <> (reason ->> 'nodes')::int""",
    ),
    (
        "told",
        """
        SELECT id, 'is ' || state || ', and the last that was told is ' || coalesce(last, 'nothing')
        FROM reservations
        LEFT JOIN LATERAL (
            SELECT type AS last
            FROM events
            WHERE subject = reservations.id AND type = ANY (%(changes)s)
            ORDER BY xid DESC, id DESC
            LIMIT 1
        ) AS told ON true
        WHERE NOT coalesce(last, '') = ANY (
            CASE state
                WHEN 'pending' THEN '{reservation.pending}'
                WHEN 'placed' THEN '{reservation.placed}'
                WHEN 'active' THEN '{reservation.placed,reservation.started}'
                WHEN 'ending' THEN '{reservation.ending}'
                WHEN 'failed' THEN '{reservation.failed}'
                ELSE '{reservation.ended}'
            END::text[]
        )""",
    ),
    (
        "told",
        """
        SELECT subject, 'was told of twice: ' || type
        FROM events
        WHERE type = ANY (%(changes)s)
            OR type IN ('pool.created', 'pool.archived', 'node.joined')
        GROUP BY subject, type, tenant_id
        HAVING count(*) > 1""",
    ),
    (
        "told",
        """
        SELECT id, 'exists, and nobody was told'
        FROM pools
        WHERE NOT EXISTS (SELECT FROM events WHERE subject = pools.id AND type = 'pool.created')""",
    ),
    (
        "told",
        """
        SELECT id, 'is archived, and nobody was told'
        FROM pools
        WHERE archived_at IS NOT NULL
            AND NOT EXISTS (
                SELECT FROM events WHERE subject = pools.id AND type = 'pool.archived'
            )""",
    ),
    # The owner is told of offers to others; a tenant that is deleted, of nothing more.
    (
        "told",
        """
        SELECT pool_id, 'is ' || CASE WHEN offered THEN '' ELSE 'not ' END || 'offered to '
            || tenant_id || ', and the last that was told is ' || coalesce(last, 'nothing')
        FROM (
            SELECT pool_id, tenant_id, true AS offered FROM offers
            UNION
            (
                SELECT subject, tenant_id, false FROM events WHERE type = 'pool.offered'
                EXCEPT
                SELECT id, tenant_id, false FROM pools
                EXCEPT
                SELECT pool_id, tenant_id, false FROM offers
            )
        ) AS pairs
        JOIN tenants ON tenants.id = tenant_id AND deleted_at IS NULL
        LEFT JOIN LATERAL (
            SELECT type AS last
            FROM events
            WHERE (subject, events.tenant_id) = (pool_id, pairs.tenant_id)
                AND type IN ('pool.offered', 'pool.unoffered', 'pool.archived')
            ORDER BY xid DESC, events.id DESC
            LIMIT 1
        ) AS told ON true
        WHERE offered <> (coalesce(last, '') = 'pool.offered')""",
    ),
    (
        "told",
        """
        SELECT pools.id, 'has version ' || version || ', and the last that was told is ' || last
        FROM pools
        CROSS JOIN LATERAL (
            SELECT after ->> 'version' AS last
            FROM events
            WHERE (subject, events.tenant_id) = (pools.id, pools.tenant_id) AND after ? 'version'
            ORDER BY xid DESC, events.id DESC
            LIMIT 1
        ) AS told
        WHERE last <> version::text""",
    ),
)

_ASSIGNED: Final[tuple[Rule, ...]] = (
    # By what has begun, and not by the clock: a window may begin before a tick says so.
    (
        "assigned",
        """
        SELECT bookings.reservation_id, 'runs on ' || nodes.name
            || ', which is not asked for its piece ' || bookings.piece
        FROM reservations
        JOIN bookings ON bookings.reservation_id = reservations.id AND voided_at IS NULL
        JOIN gpus ON gpus.id = gpu_id
        JOIN nodes ON nodes.id = gpus.node_id AND nodes.agent IS NOT NULL
        JOIN pools ON pools.id = nodes.pool_id AND pools.agent <> 'none'
        LEFT JOIN assignments ON booking_id = bookings.id
        WHERE reservations.state = 'active' AND planned @> %(now)s
            AND coalesce(assignments.state, 'withdrawn') = 'withdrawn'""",
    ),
    (
        "assigned",
        """
        SELECT reservations.id, 'is ' || reservations.state || ', and its node is asked for it'
        FROM assignments
        JOIN reservations ON reservations.id = reservation_id
        JOIN bookings ON bookings.id = booking_id
        WHERE assignments.state <> 'withdrawn'
            AND NOT (
                reservations.state = 'active'
                OR (reservations.state = 'placed' AND starts_at <= %(now)s)
            )""",
    ),
    (
        "assigned",
        """
        SELECT one.reservation_id, 'has what ' || other.reservation_id
            || ' has, by the spec of its node'
        FROM assignments AS one
        JOIN bookings AS mine ON mine.id = one.booking_id
        JOIN assignments AS other ON other.gpu_id = one.gpu_id AND other.booking_id > one.booking_id
        JOIN bookings AS theirs ON theirs.id = other.booking_id AND theirs.units && mine.units
        WHERE one.state <> 'withdrawn' AND other.state <> 'withdrawn'""",
    ),
    (
        "assigned",
        """
        SELECT reservation_id, 'is in generation ' || generation || ' of a spec that has '
            || spec_generation
        FROM assignments JOIN nodes ON nodes.id = node_id
        WHERE generation > spec_generation OR assignments.node_id <> (
            SELECT node_id FROM gpus WHERE gpus.id = assignments.gpu_id
        )""",
    ),
)

CHANGES: Final = [
    f"reservation.{change}"
    for change in ("pending", "placed", "started", "ending", "ended", "failed")
]
RULES: Final = (*_TENANTS, *_OFFERS, *_QUOTAS, *_ASSIGNED, *_TOLD)
