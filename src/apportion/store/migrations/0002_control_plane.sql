-- Tenants become a tree; tokens get roles and a keyed hash; pools can be offered; quotas count exact GPU
-- equivalents; events keep what changed, and can be delivered.

ALTER TABLE tenants
    ADD COLUMN parent_id text,
    ADD COLUMN ancestors text[],
    ADD COLUMN deleted_at timestamptz;
UPDATE tenants
SET parent_id = CASE WHEN id <> 'root' THEN 'root' END,
    ancestors = CASE WHEN id = 'root' THEN '{root}' ELSE ARRAY['root', id] END;
ALTER TABLE tenants
    ALTER COLUMN ancestors SET NOT NULL,
    ADD CONSTRAINT tenants_parent_fkey FOREIGN KEY (parent_id) REFERENCES tenants (id),
    ADD CONSTRAINT tenants_one_root CHECK ((parent_id IS NULL) = (id = 'root')),
    ADD CONSTRAINT tenants_ancestors_end CHECK (
        coalesce(
            ancestors[1] = 'root'
            AND ancestors[cardinality(ancestors)] = id
            AND (parent_id IS NULL OR ancestors[cardinality(ancestors) - 1] = parent_id),
            false
        )
    ),
    ADD CONSTRAINT tenants_depth CHECK (cardinality(ancestors) BETWEEN 1 AND 10),
    ADD CONSTRAINT tenants_root_stays CHECK (id <> 'root' OR deleted_at IS NULL);
CREATE INDEX tenants_below ON tenants USING gin (ancestors);

-- Hashes without a key cannot be turned into hashes with one: earlier tokens end here, and the next
-- start writes a new root token.
ALTER TABLE tokens
    ADD COLUMN role text,
    ADD COLUMN actions text[],
    ADD COLUMN key_id text,
    ADD COLUMN previous_hash bytea,
    ADD COLUMN previous_until timestamptz,
    ADD COLUMN created_by text,
    ADD COLUMN last_used_at timestamptz;
UPDATE tokens
SET role = 'owner', actions = '{*}', key_id = 'none', created_by = 'system',
    revoked_at = coalesce(revoked_at, now());
ALTER TABLE tokens
    ALTER COLUMN role SET NOT NULL,
    ALTER COLUMN actions SET NOT NULL,
    ALTER COLUMN key_id SET NOT NULL,
    ALTER COLUMN created_by SET NOT NULL,
    ADD CONSTRAINT tokens_previous_hash_key UNIQUE (previous_hash),
    ADD CONSTRAINT tokens_role_known CHECK (
        role IN ('owner', 'operator', 'member', 'viewer', 'node')
    ),
    ADD CONSTRAINT tokens_actions_given CHECK (cardinality(actions) > 0),
    ADD CONSTRAINT tokens_previous_ends CHECK ((previous_hash IS NULL) = (previous_until IS NULL));
CREATE INDEX tokens_by_tenant ON tokens (tenant_id, id);

CREATE TABLE access_policies (
    id text NOT NULL,
    tenant_id text NOT NULL,
    name text NOT NULL,
    description text NOT NULL,
    text text NOT NULL,
    version integer NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    CONSTRAINT access_policies_pkey PRIMARY KEY (id),
    CONSTRAINT access_policies_name_key UNIQUE (tenant_id, name),
    CONSTRAINT access_policies_text_length CHECK (length(text) BETWEEN 1 AND 10000),
    CONSTRAINT access_policies_tenant_fkey FOREIGN KEY (tenant_id) REFERENCES tenants (id)
);

ALTER TABLE sites ADD COLUMN kind text;
UPDATE sites SET kind = CASE WHEN tenant_id = 'root' THEN 'shared' ELSE 'custom' END;
ALTER TABLE sites
    ALTER COLUMN kind SET NOT NULL,
    ADD CONSTRAINT sites_kind_of_tenant CHECK (
        kind = ANY (CASE WHEN tenant_id = 'root' THEN '{shared,dedicated}' ELSE '{custom}' END::text[])
    );

ALTER TABLE pools
    ADD COLUMN single_tenant boolean NOT NULL DEFAULT false,
    ADD COLUMN archived boolean NOT NULL GENERATED ALWAYS AS (archived_at IS NOT NULL) STORED,
    ADD COLUMN holds_tenant_nodes boolean NOT NULL DEFAULT false,
    ADD COLUMN changed_xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    ADD CONSTRAINT pools_terms_key UNIQUE (
        id, tenant_id, sharing, single_tenant, holds_tenant_nodes, archived
    );
UPDATE pools
SET single_tenant = coalesce(policy -> 'singleTenant' = 'true', false),
    holds_tenant_nodes = EXISTS (
        SELECT FROM nodes WHERE pool_id = pools.id AND nodes.tenant_id <> 'root'
    );
CREATE INDEX pools_changed ON pools (changed_xid);
CREATE INDEX pools_by_tenant ON pools (tenant_id, id);
CREATE INDEX pools_by_site ON pools (site_id);

CREATE TABLE offers (
    pool_id text NOT NULL,
    tenant_id text NOT NULL,
    priority integer NOT NULL,
    include_descendants boolean NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    owner_tenant_id text NOT NULL,
    sharing text NOT NULL,
    single_tenant boolean NOT NULL,
    holds_tenant_nodes boolean NOT NULL,
    archived boolean NOT NULL,
    CONSTRAINT offers_pkey PRIMARY KEY (pool_id, tenant_id),
    CONSTRAINT offers_terms_fkey FOREIGN KEY (
        pool_id, owner_tenant_id, sharing, single_tenant, holds_tenant_nodes, archived
    ) REFERENCES pools (
        id, tenant_id, sharing, single_tenant, holds_tenant_nodes, archived
    ) ON UPDATE CASCADE,
    CONSTRAINT offers_tenant_fkey FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT offers_not_to_owner CHECK (tenant_id <> owner_tenant_id),
    CONSTRAINT offers_isolated CHECK (sharing NOT IN ('timeslice', 'mps')),
    CONSTRAINT offers_platform_nodes CHECK (NOT holds_tenant_nodes),
    CONSTRAINT offers_single_tenant_alone CHECK (NOT (single_tenant AND include_descendants)),
    CONSTRAINT offers_not_archived CHECK (NOT archived),
    CONSTRAINT offers_priority_range CHECK (priority BETWEEN -1000 AND 1000)
);
CREATE UNIQUE INDEX offers_single_tenant_one ON offers (pool_id) WHERE single_tenant;
CREATE INDEX offers_by_tenant ON offers (tenant_id, pool_id);

ALTER TABLE reservations ADD COLUMN charged_tenant_id text;
UPDATE reservations
SET charged_tenant_id = tenant_id,
    charges = charges || coalesce(
        (
            SELECT jsonb_build_object(
                'gpuEquivalents',
                sum(share_num * div(442720643463713815200, share_den))::text
            )
            FROM bookings
            WHERE reservation_id = reservations.id AND voided_at IS NULL
            HAVING count(*) > 0
        ),
        '{}'
    )
WHERE state IN ('placed', 'active', 'ending');
ALTER TABLE reservations ADD CONSTRAINT reservations_live_is_charged CHECK (
    state NOT IN ('placed', 'active', 'ending') OR charged_tenant_id IS NOT NULL
);
DROP INDEX reservations_live_by_pool;
CREATE INDEX reservations_live_by_pool ON reservations (pool_id, charged_tenant_id, id)
    WHERE state IN ('placed', 'active', 'ending');

ALTER TABLE quotas
    DROP CONSTRAINT quotas_resource_known,
    ADD CONSTRAINT quotas_resource_known CHECK (
        resource IN (
            'gpu', 'gpu.mig', 'gpu.slot', 'gpu.share', 'gpuEquivalents', 'vcpu', 'memoryGiB',
            'hugepages2Mi', 'hugepages1Gi'
        )
    ),
    ADD CONSTRAINT quotas_equivalents_whole CHECK (
        resource <> 'gpuEquivalents' OR (coalesce(max = trunc(max), true) AND used = trunc(used))
    );
INSERT INTO quotas (tenant_id, pool_id, resource, max, used)
SELECT tenant_id, pool_id, 'gpuEquivalents', NULL, (
    SELECT coalesce(sum((charges ->> 'gpuEquivalents')::numeric), 0)
    FROM reservations
    WHERE (charged_tenant_id, reservations.pool_id) = (has.tenant_id, has.pool_id)
        AND state IN ('placed', 'active', 'ending')
)
FROM (SELECT DISTINCT tenant_id, pool_id FROM quotas) AS has;
CREATE INDEX quotas_by_pool ON quotas (pool_id, tenant_id, resource);

ALTER TABLE events ADD COLUMN before jsonb, ADD COLUMN after jsonb;

CREATE TABLE webhooks (
    id text NOT NULL,
    tenant_id text NOT NULL,
    name text NOT NULL,
    url text NOT NULL,
    types text[] NOT NULL,
    enabled boolean NOT NULL,
    secret_version integer NOT NULL DEFAULT 1,
    version integer NOT NULL DEFAULT 1,
    read_xid xid8 NOT NULL,
    read_id bigint NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    CONSTRAINT webhooks_pkey PRIMARY KEY (id),
    CONSTRAINT webhooks_name_key UNIQUE (tenant_id, name),
    CONSTRAINT webhooks_tenant_fkey FOREIGN KEY (tenant_id) REFERENCES tenants (id)
);

CREATE TABLE deliveries (
    id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    tenant_id text NOT NULL,
    webhook_id text NOT NULL,
    event_id bigint NOT NULL,
    state text NOT NULL,
    attempts integer NOT NULL DEFAULT 0,
    next_at timestamptz NOT NULL,
    last_status integer,
    last_error text,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    CONSTRAINT deliveries_pkey PRIMARY KEY (id),
    CONSTRAINT deliveries_event_key UNIQUE (webhook_id, event_id),
    CONSTRAINT deliveries_webhook_fkey FOREIGN KEY (webhook_id) REFERENCES webhooks (id)
        ON DELETE CASCADE,
    CONSTRAINT deliveries_event_fkey FOREIGN KEY (event_id) REFERENCES events (id),
    CONSTRAINT deliveries_state_known CHECK (state IN ('pending', 'dead')),
    CONSTRAINT deliveries_dead_has_error CHECK (state <> 'dead' OR last_error IS NOT NULL)
);
CREATE INDEX deliveries_due ON deliveries (webhook_id, next_at, id) WHERE state = 'pending';
CREATE INDEX deliveries_by_webhook ON deliveries (webhook_id, id);
