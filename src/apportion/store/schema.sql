-- The schema of Apportion: what is true lives here, as named constraints.
--
-- Conventions. Every table of a tenant's things has tenant_id. A column has one writer, named where it
-- is not plain. Times are instants (timestamptz), windows half-open ranges '[)'. Rows that a placement
-- index follows carry changed_xid, so that a reader can ask for "all that may have changed since my last
-- snapshot" without a gap, whatever the order of commits. Nothing here reads the clock: callers pass it.

CREATE EXTENSION IF NOT EXISTS btree_gist;

-- A tree under root. ancestors is the way from root to the tenant itself; a tenant never moves, so it
-- is written once. A deleted tenant keeps its row, because what it used is billed.
CREATE TABLE tenants (
    id text NOT NULL,
    parent_id text,
    ancestors text[] NOT NULL,
    name text NOT NULL,
    created_at timestamptz NOT NULL,
    deleted_at timestamptz,
    CONSTRAINT tenants_pkey PRIMARY KEY (id),
    CONSTRAINT tenants_parent_fkey FOREIGN KEY (parent_id) REFERENCES tenants (id),
    CONSTRAINT tenants_id_form CHECK (id ~ '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$'),
    CONSTRAINT tenants_one_root CHECK ((parent_id IS NULL) = (id = 'root')),
    CONSTRAINT tenants_ancestors_end CHECK (
        coalesce(
            ancestors[1] = 'root'
            AND ancestors[cardinality(ancestors)] = id
            AND (parent_id IS NULL OR ancestors[cardinality(ancestors) - 1] = parent_id),
            false
        )
    ),
    CONSTRAINT tenants_depth CHECK (cardinality(ancestors) BETWEEN 1 AND 10),
    CONSTRAINT tenants_root_stays CHECK (id <> 'root' OR deleted_at IS NULL)
);
CREATE INDEX tenants_below ON tenants USING gin (ancestors);

-- A token is shown once; only a keyed hash of its 256 random bits is kept. key_id tells which server
-- key it was hashed with. previous_hash is what it was before it was rotated, and works until
-- previous_until.
CREATE TABLE tokens (
    id text NOT NULL,
    tenant_id text NOT NULL,
    name text NOT NULL,
    role text NOT NULL,
    actions text[] NOT NULL,
    hash bytea NOT NULL,
    key_id text NOT NULL,
    previous_hash bytea,
    previous_until timestamptz,
    created_by text NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz,
    revoked_at timestamptz,
    last_used_at timestamptz,
    CONSTRAINT tokens_pkey PRIMARY KEY (id),
    CONSTRAINT tokens_hash_key UNIQUE (hash),
    CONSTRAINT tokens_previous_hash_key UNIQUE (previous_hash),
    CONSTRAINT tokens_hash_length CHECK (octet_length(hash) = 32),
    CONSTRAINT tokens_role_known CHECK (
        role IN ('owner', 'operator', 'member', 'viewer', 'node')
    ),
    CONSTRAINT tokens_actions_given CHECK (cardinality(actions) > 0),
    CONSTRAINT tokens_previous_ends CHECK ((previous_hash IS NULL) = (previous_until IS NULL)),
    CONSTRAINT tokens_tenant_fkey FOREIGN KEY (tenant_id) REFERENCES tenants (id)
);
CREATE INDEX tokens_by_tenant ON tokens (tenant_id, id);

-- Cedar policies that an operator adds to a tenant; they hold for it and for all tenants below.
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

CREATE TABLE sites (
    id text NOT NULL,
    tenant_id text NOT NULL,
    name text NOT NULL,
    region text NOT NULL,
    kind text NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT sites_pkey PRIMARY KEY (id),
    CONSTRAINT sites_name_key UNIQUE (tenant_id, name),
    CONSTRAINT sites_kind_of_tenant CHECK (
        kind = ANY (CASE WHEN tenant_id = 'root' THEN '{shared,dedicated}' ELSE '{custom}' END::text[])
    ),
    CONSTRAINT sites_tenant_fkey FOREIGN KEY (tenant_id) REFERENCES tenants (id)
);

-- tenant_id is the owner. replicas, shares and single_tenant are read out of the policy when it is
-- written: the first two are the ruler of every GPU of the pool, the last says who may be offered it.
CREATE TABLE pools (
    id text NOT NULL,
    tenant_id text NOT NULL,
    site_id text NOT NULL,
    name text NOT NULL,
    class text NOT NULL,
    gpu_model text NOT NULL,
    sharing text NOT NULL,
    agent text NOT NULL,
    provider_account_id text,
    policy jsonb NOT NULL,
    replicas integer,
    shares integer,
    single_tenant boolean NOT NULL DEFAULT false,
    version integer NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL,
    archived_at timestamptz,
    archived boolean NOT NULL GENERATED ALWAYS AS (archived_at IS NOT NULL) STORED,
    -- Written by inventory: some node of the pool belongs to a tenant, not to the platform.
    holds_tenant_nodes boolean NOT NULL DEFAULT false,
    -- Who may use the pool, or what its policy says, may have changed: what waits for it is tried again.
    changed_xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    -- Raised whenever nodes, GPUs or atoms of the pool change, so that a placement index knows to reload.
    fleet_revision bigint NOT NULL DEFAULT 0,
    CONSTRAINT pools_pkey PRIMARY KEY (id),
    CONSTRAINT pools_name_key UNIQUE (tenant_id, name),
    CONSTRAINT pools_terms_key UNIQUE (
        id, tenant_id, sharing, single_tenant, holds_tenant_nodes, archived
    ),
    CONSTRAINT pools_tenant_fkey FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT pools_site_fkey FOREIGN KEY (site_id) REFERENCES sites (id),
    CONSTRAINT pools_class_known CHECK (
        class IN ('metal-host', 'vps-host', 'kubernetes-host', 'slurm-host', 'provider')
    ),
    CONSTRAINT pools_sharing_known CHECK (sharing IN ('exclusive', 'mig', 'timeslice', 'mps')),
    CONSTRAINT pools_provider_account CHECK ((class = 'provider') = (provider_account_id IS NOT NULL)),
    CONSTRAINT pools_provider_agent CHECK (class <> 'provider' OR agent = 'none'),
    CONSTRAINT pools_replicas_range CHECK (replicas BETWEEN 1 AND 48),
    CONSTRAINT pools_shares_fixed CHECK (shares = 100),
    CONSTRAINT pools_split CHECK (
        num_nonnulls(replicas, shares) = CASE WHEN sharing IN ('timeslice', 'mps') THEN 1 ELSE 0 END
    )
);
CREATE INDEX pools_changed ON pools (changed_xid);
CREATE INDEX pools_by_tenant ON pools (tenant_id, id);
CREATE INDEX pools_by_site ON pools (site_id);

-- An offer makes a pool exist for another tenant. The columns after it repeat the pool's, and follow
-- them, so that no pool can become what may not be offered while it is.
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

-- max NULL is unlimited; a missing row grants nothing. used may exceed max only after max was lowered,
-- which is why that is no constraint: the charging statement refuses instead. gpuEquivalents are counted
-- in fine units of which 442720643463713815200 make a GPU, so that every share is a whole number.
-- changed_xid is the last time that it could have come to cover more.
CREATE TABLE quotas (
    tenant_id text NOT NULL,
    pool_id text NOT NULL,
    resource text NOT NULL,
    max numeric,
    used numeric NOT NULL DEFAULT 0,
    changed_xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    CONSTRAINT quotas_pkey PRIMARY KEY (tenant_id, pool_id, resource),
    CONSTRAINT quotas_tenant_fkey FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT quotas_pool_fkey FOREIGN KEY (pool_id) REFERENCES pools (id),
    CONSTRAINT quotas_resource_known CHECK (
        resource IN (
            'gpu', 'gpu.mig', 'gpu.slot', 'gpu.share', 'gpuEquivalents', 'vcpu', 'memoryGiB',
            'hugepages2Mi', 'hugepages1Gi'
        )
    ),
    CONSTRAINT quotas_equivalents_whole CHECK (
        resource <> 'gpuEquivalents' OR (coalesce(max = trunc(max), true) AND used = trunc(used))
    ),
    CONSTRAINT quotas_max_not_negative CHECK (max >= 0),
    CONSTRAINT quotas_used_not_negative CHECK (used >= 0)
);
CREATE INDEX quotas_by_pool ON quotas (pool_id, tenant_id, resource);
CREATE INDEX quotas_changed ON quotas (changed_xid);

-- tenant_id is the machine's owner; controller says who runs what is on it.
CREATE TABLE nodes (
    id integer NOT NULL GENERATED ALWAYS AS IDENTITY,
    uid text NOT NULL,
    tenant_id text NOT NULL,
    pool_id text NOT NULL,
    name text NOT NULL,
    target text NOT NULL,
    controller text NOT NULL,
    health text NOT NULL,
    health_reason text,
    inventory jsonb NOT NULL,
    inventory_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL,
    -- Who on the machine follows its spec; NULL where nobody does and its reports are imported.
    agent text,
    mig_layout_from text NOT NULL DEFAULT 'pool',
    -- The MIG layout that it is to have whatever its pool asks for; NULL where it follows its pool.
    pinned_layout text,
    -- The node's own: the MIG layout that it has from its own file; NULL where it takes its pool's.
    own_layout text,
    -- Ours: raised whenever anything that the node is asked to be changes.
    spec_generation bigint NOT NULL DEFAULT 1,
    -- The node's own, as of its last report: converged says up to which generation each unit is done,
    -- converged_at when all of them were for the first time.
    report_sequence bigint,
    observed_generation bigint,
    observed_at timestamptz,
    converged jsonb NOT NULL DEFAULT '{}',
    converged_at timestamptz,
    -- A node that joined by itself has a key, and says nothing without it; who vouched for it, and when.
    -- A revoked one is refused until it joins anew.
    public_key bytea,
    attestor text,
    enrolled_at timestamptz,
    revoked_at timestamptz,
    -- The node's own, as of its last report: how far its units have come, and what it passed as a new one;
    -- report_digest tells whether the next report says the same. accepted_at is when it had passed all.
    report_digest bytea,
    outcomes jsonb NOT NULL DEFAULT '{}',
    acceptance jsonb NOT NULL DEFAULT '{}',
    accepted_at timestamptz,
    -- Since when a node whose agent reported is not heard of.
    stale_since timestamptz,
    CONSTRAINT nodes_pkey PRIMARY KEY (id),
    CONSTRAINT nodes_uid_key UNIQUE (uid),
    CONSTRAINT nodes_name_key UNIQUE (pool_id, name),
    CONSTRAINT nodes_tenant_fkey FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT nodes_pool_fkey FOREIGN KEY (pool_id) REFERENCES pools (id),
    CONSTRAINT nodes_target_known CHECK (target IN ('direct', 'kubernetes', 'slurm', 'none')),
    CONSTRAINT nodes_controller_known CHECK (controller IN ('platform', 'tenant')),
    CONSTRAINT nodes_health_known CHECK (health IN ('healthy', 'degraded', 'no_capacity')),
    CONSTRAINT nodes_health_reason CHECK ((health = 'healthy') = (health_reason IS NULL)),
    CONSTRAINT nodes_layout_from_known CHECK (mig_layout_from IN ('pool', 'node')),
    CONSTRAINT nodes_pinned_to_something CHECK (pinned_layout <> ''),
    CONSTRAINT nodes_own_layout_named CHECK (own_layout <> ''),
    CONSTRAINT nodes_spec_counted CHECK (spec_generation >= 1),
    CONSTRAINT nodes_observed_was_asked CHECK (observed_generation BETWEEN 1 AND spec_generation),
    CONSTRAINT nodes_observed_whole CHECK (
        num_nonnulls(report_sequence, observed_generation, observed_at) IN (0, 3)
    ),
    CONSTRAINT nodes_converged_is_object CHECK (jsonb_typeof(converged) = 'object'),
    CONSTRAINT nodes_public_key_key UNIQUE (public_key),
    CONSTRAINT nodes_public_key_length CHECK (octet_length(public_key) = 32),
    CONSTRAINT nodes_enrolled_whole CHECK (
        num_nonnulls(public_key, attestor, enrolled_at) IN (0, 3)
    ),
    CONSTRAINT nodes_revoked_had_key CHECK (revoked_at IS NULL OR public_key IS NOT NULL),
    CONSTRAINT nodes_outcomes_is_object CHECK (jsonb_typeof(outcomes) = 'object'),
    CONSTRAINT nodes_acceptance_is_object CHECK (jsonb_typeof(acceptance) = 'object')
);
CREATE INDEX nodes_heard_of ON nodes (pool_id) WHERE agent IS NOT NULL AND stale_since IS NULL;
CREATE INDEX nodes_stale ON nodes (pool_id) WHERE stale_since IS NOT NULL;

-- Lets one machine join a pool, once. Only a keyed hash of it is kept, like a token's. A used one stays,
-- and names the node that it let in.
CREATE TABLE join_tokens (
    id text NOT NULL,
    tenant_id text NOT NULL,
    pool_id text NOT NULL,
    name text NOT NULL,
    class text NOT NULL,
    hash bytea NOT NULL,
    created_by text NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    used_at timestamptz,
    node_id integer,
    revoked_at timestamptz,
    CONSTRAINT join_tokens_pkey PRIMARY KEY (id),
    CONSTRAINT join_tokens_hash_key UNIQUE (hash),
    CONSTRAINT join_tokens_tenant_fkey FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT join_tokens_pool_fkey FOREIGN KEY (pool_id) REFERENCES pools (id),
    CONSTRAINT join_tokens_node_fkey FOREIGN KEY (node_id) REFERENCES nodes (id),
    CONSTRAINT join_tokens_hash_length CHECK (octet_length(hash) = 32),
    CONSTRAINT join_tokens_ends CHECK (expires_at > created_at),
    CONSTRAINT join_tokens_used_by_node CHECK ((used_at IS NULL) = (node_id IS NULL))
);
CREATE INDEX join_tokens_by_tenant ON join_tokens (tenant_id, id);

-- Host scalars, in whole fine units: vcpu in 1/1000, memoryGiB in MiB, huge pages in pages.
-- total is what the machine has to give, ratio the overcommit, capacity what may be booked: the product,
-- but never below what is allocated.
CREATE TABLE node_resources (
    node_id integer NOT NULL,
    tenant_id text NOT NULL,
    resource text NOT NULL,
    total bigint NOT NULL,
    ratio numeric NOT NULL,
    capacity bigint NOT NULL,
    updated_at timestamptz NOT NULL,
    CONSTRAINT node_resources_pkey PRIMARY KEY (node_id, resource),
    CONSTRAINT node_resources_node_fkey FOREIGN KEY (node_id) REFERENCES nodes (id) ON DELETE CASCADE,
    CONSTRAINT node_resources_tenant_fkey FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT node_resources_resource_known CHECK (
        resource IN ('vcpu', 'memoryGiB', 'hugepages2Mi', 'hugepages1Gi')
    ),
    CONSTRAINT node_resources_total_not_negative CHECK (total >= 0),
    CONSTRAINT node_resources_ratio_range CHECK (ratio BETWEEN 0.1 AND 100),
    CONSTRAINT node_resources_hugepages_exact CHECK (resource NOT LIKE 'hugepages%' OR ratio = 1),
    CONSTRAINT node_resources_capacity_covers CHECK (capacity >= floor(total * ratio))
);

-- Every legal placement of every board that this version knows, written at start from package data:
-- what a booking of a MIG instance must lie on.
CREATE TABLE mig_placements (
    board text NOT NULL,
    profile text NOT NULL,
    start integer NOT NULL,
    units int4multirange NOT NULL,
    CONSTRAINT mig_placements_pkey PRIMARY KEY (board, profile, start),
    CONSTRAINT mig_placements_units_key UNIQUE (board, profile, start, units)
);

-- The ruler: split says into what the GPU is cut as observed, ruler how many units that makes.
-- layout_generation rises whenever the observed cut changes; bookings carry the one they were made for.
CREATE TABLE gpus (
    id integer NOT NULL GENERATED ALWAYS AS IDENTITY,
    uuid text NOT NULL,
    tenant_id text NOT NULL,
    pool_id text NOT NULL,
    node_id integer NOT NULL,
    index integer NOT NULL,
    product text NOT NULL,
    model text NOT NULL,
    board text,
    pci_address text,
    memory_mib bigint,
    numa_node integer,
    mig_current boolean NOT NULL,
    mig_pending boolean NOT NULL,
    split text NOT NULL,
    ruler integer NOT NULL,
    layout_generation integer NOT NULL DEFAULT 1,
    nvlink jsonb NOT NULL,
    -- Written by inventory: why nothing of the GPU can be booked, NULL when it can.
    unbookable_reason text,
    present boolean NOT NULL,
    CONSTRAINT gpus_pkey PRIMARY KEY (id),
    CONSTRAINT gpus_uuid_key UNIQUE (uuid),
    CONSTRAINT gpus_id_board_key UNIQUE (id, board),
    CONSTRAINT gpus_id_pool_key UNIQUE (id, pool_id),
    CONSTRAINT gpus_tenant_fkey FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT gpus_pool_fkey FOREIGN KEY (pool_id) REFERENCES pools (id),
    CONSTRAINT gpus_node_fkey FOREIGN KEY (node_id) REFERENCES nodes (id),
    CONSTRAINT gpus_split_known CHECK (split IN ('none', 'mig', 'slots', 'shares')),
    CONSTRAINT gpus_ruler_positive CHECK (ruler >= 1)
);
CREATE INDEX gpus_pool ON gpus (pool_id, id);
CREATE INDEX gpus_node ON gpus (node_id);

-- What can be booked, derived from what the node reports. An atom is never edited into another: a new
-- cut retires the old atoms and makes new ones, so a booking's atom keeps meaning what it meant.
CREATE TABLE atoms (
    id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    tenant_id text NOT NULL,
    pool_id text NOT NULL,
    gpu_id integer NOT NULL,
    key text NOT NULL,
    class text NOT NULL,
    units int4multirange NOT NULL,
    generation integer NOT NULL,
    board text,
    profile text,
    start integer,
    share_num integer NOT NULL,
    share_den integer NOT NULL,
    bookable boolean NOT NULL,
    reason text,
    attributes jsonb NOT NULL,
    retired_at timestamptz,
    CONSTRAINT atoms_pkey PRIMARY KEY (id),
    CONSTRAINT atoms_units_key UNIQUE (id, gpu_id, class, units),
    CONSTRAINT atoms_tenant_fkey FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT atoms_pool_fkey FOREIGN KEY (pool_id) REFERENCES pools (id),
    CONSTRAINT atoms_gpu_fkey FOREIGN KEY (gpu_id) REFERENCES gpus (id),
    CONSTRAINT atoms_gpu_board_fkey FOREIGN KEY (gpu_id, board) REFERENCES gpus (id, board),
    CONSTRAINT atoms_placement_fkey FOREIGN KEY (board, profile, start, units)
        REFERENCES mig_placements (board, profile, start, units),
    CONSTRAINT atoms_class_known CHECK (class IN ('gpu', 'gpu.mig', 'gpu.slot', 'gpu.share')),
    CONSTRAINT atoms_units_not_empty CHECK (units <> '{}'::int4multirange),
    -- One whose place nobody knows has every unit, which no booking of an instance may have.
    CONSTRAINT atoms_mig_is_legal CHECK (
        class <> 'gpu.mig'
        OR num_nonnulls(board, profile, start) = 3
        OR (NOT bookable AND units = '{[0,)}'::int4multirange)
    ),
    CONSTRAINT atoms_share_range CHECK (
        share_den > 0 AND share_num BETWEEN CASE WHEN bookable THEN 1 ELSE 0 END AND share_den
    ),
    CONSTRAINT atoms_reason_given CHECK (bookable = (reason IS NULL)),
    CONSTRAINT atoms_retired_unbookable CHECK (retired_at IS NULL OR NOT bookable)
);
CREATE UNIQUE INDEX atoms_live_key ON atoms (key) WHERE retired_at IS NULL;
CREATE INDEX atoms_gpu ON atoms (gpu_id) WHERE retired_at IS NULL;
CREATE INDEX atoms_pool ON atoms (pool_id, id) WHERE retired_at IS NULL;

-- An ask by a tenant, and what became of it. pool_id is the pool it got, candidates those it may get.
-- charged_tenant_id is whose quota it is charged to while it lives: its own, or that of the ancestor to
-- which the pool is offered.
-- The life: pending -> placed -> active -> ending -> ended, or failed; reason says why it is where it is.
CREATE TABLE series (
    id text NOT NULL,
    tenant_id text NOT NULL,
    name text,
    recurrence jsonb NOT NULL,
    request_hash bytea NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT series_pkey PRIMARY KEY (id),
    CONSTRAINT series_tenant_fkey FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT series_recurrence_is_object CHECK (jsonb_typeof(recurrence) = 'object')
);
CREATE INDEX series_by_tenant ON series (tenant_id, created_at, id);

CREATE TABLE reservations (
    id text NOT NULL,
    tenant_id text NOT NULL,
    caller text NOT NULL,
    name text,
    pool_id text,
    candidates text[] NOT NULL,
    state text NOT NULL,
    reason jsonb NOT NULL,
    devices jsonb NOT NULL,
    vcpu_milli bigint NOT NULL,
    memory_mib bigint NOT NULL,
    asked_start timestamptz,
    asked_end timestamptz,
    duration interval,
    starts_at timestamptz,
    ends_at timestamptz,
    pending_until timestamptz NOT NULL,
    charges jsonb NOT NULL,
    charged_tenant_id text,
    request_hash bytea NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    placement jsonb NOT NULL DEFAULT '{}',
    members integer NOT NULL DEFAULT 1,
    end_before timestamptz,
    open_ended boolean NOT NULL DEFAULT false,
    series_id text,
    priority integer NOT NULL DEFAULT 0,
    tell_end_at timestamptz,
    waits_for text[] NOT NULL DEFAULT '{}',
    waits_xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    fails_at timestamptz,
    reserve_at timestamptz,
    reserved_start boolean NOT NULL DEFAULT false,
    topology jsonb,
    delayed_from timestamptz,
    CONSTRAINT reservations_pkey PRIMARY KEY (id),
    CONSTRAINT reservations_tenant_fkey FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT reservations_pool_fkey FOREIGN KEY (pool_id) REFERENCES pools (id),
    CONSTRAINT reservations_series_fkey FOREIGN KEY (series_id) REFERENCES series (id),
    CONSTRAINT reservations_state_known CHECK (
        state IN ('pending', 'placed', 'active', 'ending', 'ended', 'failed')
    ),
    CONSTRAINT reservations_reason_coded CHECK (reason ? 'code'),
    CONSTRAINT reservations_candidates_given CHECK (cardinality(candidates) > 0),
    CONSTRAINT reservations_pool_is_candidate CHECK (pool_id = ANY (candidates)),
    CONSTRAINT reservations_live_has_window CHECK (
        state NOT IN ('placed', 'active', 'ending') OR num_nonnulls(pool_id, starts_at, ends_at) = 3
    ),
    CONSTRAINT reservations_live_is_charged CHECK (
        state NOT IN ('placed', 'active', 'ending') OR charged_tenant_id IS NOT NULL
    ),
    CONSTRAINT reservations_window_forward CHECK (ends_at >= starts_at),
    CONSTRAINT reservations_asks_for_time CHECK (
        num_nonnulls(duration, asked_end) = CASE WHEN open_ended THEN 0 ELSE 1 END
        AND coalesce(asked_end > asked_start, duration > '0'::interval, open_ended)
    ),
    CONSTRAINT reservations_slack_has_length CHECK (
        end_before IS NULL OR coalesce(duration > '0'::interval AND end_before > created_at, false)
    ),
    CONSTRAINT reservations_members_counted CHECK (members BETWEEN 1 AND 64),
    CONSTRAINT reservations_topology_scored CHECK (topology ? 'score'),
    CONSTRAINT reservations_placement_is_object CHECK (jsonb_typeof(placement) = 'object'),
    CONSTRAINT reservations_waiting_ends CHECK (state <> 'pending' OR fails_at IS NOT NULL),
    CONSTRAINT reservations_asks_for_something CHECK (
        jsonb_array_length(devices) > 0 OR vcpu_milli > 0 OR memory_mib > 0
    ),
    CONSTRAINT reservations_host_not_negative CHECK (vcpu_milli >= 0 AND memory_mib >= 0),
    CONSTRAINT reservations_delayed_begins_later CHECK (delayed_from <= starts_at)
);
CREATE INDEX reservations_by_tenant ON reservations (tenant_id, created_at, id);
CREATE INDEX reservations_by_pool ON reservations (tenant_id, pool_id, created_at, id)
    WHERE pool_id IS NOT NULL;
CREATE INDEX reservations_by_name ON reservations (tenant_id, name, created_at, id)
    WHERE name IS NOT NULL;
CREATE INDEX reservations_open ON reservations (tenant_id, created_at, id)
    WHERE state IN ('pending', 'placed', 'active', 'ending');
CREATE INDEX reservations_failed ON reservations (tenant_id, created_at, id)
    WHERE state = 'failed';
CREATE INDEX reservations_pending ON reservations (priority DESC, created_at, id)
    WHERE state = 'pending';
CREATE INDEX reservations_waiting ON reservations (waits_xid) WHERE state = 'pending';
CREATE INDEX reservations_by_series ON reservations (tenant_id, series_id, created_at, id)
    WHERE series_id IS NOT NULL;
CREATE INDEX reservations_to_reserve ON reservations (reserve_at, priority DESC, created_at, id)
    WHERE state = 'pending' AND reserve_at IS NOT NULL;
CREATE INDEX reservations_reserved ON reservations (pool_id, starts_at)
    WHERE state = 'placed' AND reserved_start;
CREATE INDEX reservations_reserved_waiting ON reservations (waits_xid)
    WHERE state = 'placed' AND reserved_start;
CREATE INDEX reservations_to_fail ON reservations (fails_at) WHERE state = 'pending';
CREATE INDEX reservations_to_start ON reservations (starts_at) WHERE state = 'placed';
CREATE INDEX reservations_to_end ON reservations (ends_at) WHERE state IN ('placed', 'active');
CREATE INDEX reservations_to_tell ON reservations (tell_end_at)
    WHERE state IN ('placed', 'active') AND tell_end_at IS NOT NULL;
CREATE INDEX reservations_ending ON reservations (id) WHERE state = 'ending';
CREATE INDEX reservations_live_by_pool ON reservations (pool_id, charged_tenant_id, id)
    WHERE state IN ('placed', 'active', 'ending');

-- Why a reservation waited, from when on: one row whenever that changed.
CREATE TABLE reservation_reasons (
    reservation_id text NOT NULL,
    tenant_id text NOT NULL,
    since timestamptz NOT NULL,
    reason jsonb NOT NULL,
    CONSTRAINT reservation_reasons_pkey PRIMARY KEY (reservation_id, since),
    CONSTRAINT reservation_reasons_reservation_fkey FOREIGN KEY (reservation_id)
        REFERENCES reservations (id) DEFERRABLE INITIALLY DEFERRED,
    CONSTRAINT reservation_reasons_coded CHECK (reason ? 'code')
);

-- Units of a GPU for a window. The exclusion constraint is the whole exclusivity rule; the checks close
-- its holes (NULL and empty ranges would slip past it). planned is what is billed, during what is kept
-- from others. Ending early shortens during; a booking may be voided only before it begins, so that one
-- which began can never be argued away. due_back is until when it would be kept had its holder left: during
-- is longer while somebody is still on its units. The reservation is checked at commit, because bookings are
-- written first: whoever loses here never becomes a reservation.
CREATE TABLE bookings (
    id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    tenant_id text NOT NULL,
    pool_id text NOT NULL,
    gpu_id integer NOT NULL,
    reservation_id text,
    partition_id text,
    piece integer NOT NULL,
    device integer NOT NULL,
    class text NOT NULL,
    atom_id bigint,
    generation integer NOT NULL,
    units int4multirange NOT NULL,
    during tstzrange NOT NULL,
    planned tstzrange NOT NULL,
    share_num integer NOT NULL,
    share_den integer NOT NULL,
    voided_at timestamptz,
    changed_xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    due_back timestamptz,
    CONSTRAINT bookings_pkey PRIMARY KEY (id),
    CONSTRAINT bookings_no_overlap EXCLUDE USING gist (
        gpu_id WITH =, units WITH &&, during WITH &&
    ) WHERE (voided_at IS NULL),
    CONSTRAINT bookings_gpu_fkey FOREIGN KEY (gpu_id, pool_id) REFERENCES gpus (id, pool_id),
    CONSTRAINT bookings_reservation_fkey FOREIGN KEY (reservation_id) REFERENCES reservations (id)
        DEFERRABLE INITIALLY DEFERRED,
    CONSTRAINT bookings_atom_fkey FOREIGN KEY (atom_id, gpu_id, class, units)
        REFERENCES atoms (id, gpu_id, class, units),
    CONSTRAINT bookings_class_known CHECK (
        class IN ('gpu', 'gpu.mig', 'gpu.slot', 'gpu.share', 'partition')
    ),
    CONSTRAINT bookings_one_holder CHECK (
        num_nonnulls(reservation_id, partition_id) = 1
        AND (class = 'partition') = (partition_id IS NOT NULL)
    ),
    CONSTRAINT bookings_units_not_empty CHECK (coalesce(lower(units) >= 0, false)),
    CONSTRAINT bookings_whole_is_every_unit CHECK (
        (class IN ('gpu', 'partition')) = (units = '{[0,)}'::int4multirange)
    ),
    CONSTRAINT bookings_mig_lies_on_atom CHECK (class <> 'gpu.mig' OR atom_id IS NOT NULL),
    CONSTRAINT bookings_during_half_open CHECK (
        NOT isempty(during) AND lower_inc(during) AND NOT upper_inc(during) AND NOT lower_inf(during)
    ),
    CONSTRAINT bookings_planned_within_during CHECK (NOT isempty(planned) AND planned <@ during),
    CONSTRAINT bookings_share_range CHECK (share_den > 0 AND share_num BETWEEN 0 AND share_den),
    CONSTRAINT bookings_void_before_start CHECK (voided_at <= lower(during)),
    CONSTRAINT bookings_due_back_before_the_end CHECK (
        due_back BETWEEN upper(planned) AND upper(during)
    )
);
CREATE INDEX bookings_changed ON bookings (changed_xid);
CREATE INDEX bookings_reservation ON bookings (reservation_id);
CREATE INDEX bookings_ended ON bookings (upper(planned));

-- What a node is cut into, from the first change on: one row a node, written by the gate alone. granted is
-- the cut in force ({"migLayout": …}, {"replicas": …} or {"shares": …}; {} as it was found), pending the
-- one that comes next. hold_from is from when on nothing of the node can be booked. A node that was never
-- gated has no row and is cut as its pool says.
CREATE TABLE node_layouts (
    node_id integer NOT NULL,
    tenant_id text NOT NULL,
    pool_id text NOT NULL,
    state text NOT NULL,
    granted jsonb NOT NULL,
    pending jsonb,
    hold_from timestamptz,
    -- The node's spec_generation that the last grant made: what it must have converged to be let go.
    grant_generation bigint,
    since timestamptz NOT NULL,
    reason jsonb NOT NULL,
    version integer NOT NULL DEFAULT 1,
    CONSTRAINT node_layouts_pkey PRIMARY KEY (node_id),
    CONSTRAINT node_layouts_node_fkey FOREIGN KEY (node_id) REFERENCES nodes (id) ON DELETE CASCADE,
    CONSTRAINT node_layouts_tenant_fkey FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT node_layouts_pool_fkey FOREIGN KEY (pool_id) REFERENCES pools (id),
    CONSTRAINT node_layouts_state_known CHECK (
        state IN ('settled', 'pending', 'waiting_open_ended', 'scheduled', 'granted')
    ),
    CONSTRAINT node_layouts_pending_given CHECK (
        CASE state WHEN 'settled' THEN pending IS NULL WHEN 'granted' THEN true ELSE pending IS NOT NULL END
    ),
    CONSTRAINT node_layouts_held_while_changing CHECK (
        (hold_from IS NOT NULL) = (state IN ('scheduled', 'granted'))
    ),
    CONSTRAINT node_layouts_grant_numbered CHECK (state <> 'granted' OR grant_generation IS NOT NULL),
    CONSTRAINT node_layouts_cuts_are_objects CHECK (
        jsonb_typeof(granted) = 'object' AND coalesce(jsonb_typeof(pending) = 'object', true)
    ),
    CONSTRAINT node_layouts_reason_coded CHECK (reason ? 'code')
);
CREATE INDEX node_layouts_unsettled ON node_layouts (pool_id, node_id) WHERE state <> 'settled';
CREATE INDEX node_layouts_due ON node_layouts (hold_from) WHERE state = 'scheduled';

-- A GPU that is kept for a change of its cut: by which booking, since when and why.
CREATE TABLE gpu_partitions (
    gpu_id integer NOT NULL,
    tenant_id text NOT NULL,
    node_id integer NOT NULL,
    booking_id bigint NOT NULL,
    state text NOT NULL,
    since timestamptz NOT NULL,
    reason jsonb NOT NULL,
    CONSTRAINT gpu_partitions_pkey PRIMARY KEY (gpu_id),
    CONSTRAINT gpu_partitions_gpu_fkey FOREIGN KEY (gpu_id) REFERENCES gpus (id),
    CONSTRAINT gpu_partitions_tenant_fkey FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT gpu_partitions_node_fkey FOREIGN KEY (node_id) REFERENCES node_layouts (node_id)
        ON DELETE CASCADE,
    CONSTRAINT gpu_partitions_booking_fkey FOREIGN KEY (booking_id) REFERENCES bookings (id),
    CONSTRAINT gpu_partitions_state_known CHECK (state IN ('scheduled', 'granted')),
    CONSTRAINT gpu_partitions_reason_coded CHECK (reason ? 'code')
);
CREATE INDEX gpu_partitions_by_node ON gpu_partitions (node_id, gpu_id);

-- What a node with an agent is asked to hand out: a row for each booking whose window has begun, written in the
-- transaction in which it begins and withdrawn in that in which it ends. generation is the node's first spec that had it,
-- or, of one that was withdrawn, that had it no more. state, since, reason and device (the names of an instance) are what
-- the node's reports say: whether it is there. bound and released are the node's word that it was handed out, and taken
-- back; in_hands says that somebody may be on it.
CREATE TABLE assignments (
    booking_id bigint NOT NULL,
    tenant_id text NOT NULL,
    node_id integer NOT NULL,
    gpu_id integer NOT NULL,
    reservation_id text NOT NULL,
    piece integer NOT NULL,
    generation bigint NOT NULL,
    state text NOT NULL,
    since timestamptz NOT NULL,
    reason jsonb NOT NULL,
    device jsonb,
    bound jsonb,
    released jsonb,
    in_hands boolean NOT NULL GENERATED ALWAYS AS (
        released IS NULL
        AND (
            bound IS NOT NULL
            OR (state = 'withdrawn' AND reason ->> 'code' NOT IN ('window_over', 'device_released'))
        )
    ) STORED,
    CONSTRAINT assignments_pkey PRIMARY KEY (booking_id),
    CONSTRAINT assignments_booking_fkey FOREIGN KEY (booking_id) REFERENCES bookings (id),
    CONSTRAINT assignments_tenant_fkey FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT assignments_node_fkey FOREIGN KEY (node_id) REFERENCES nodes (id),
    CONSTRAINT assignments_gpu_fkey FOREIGN KEY (gpu_id) REFERENCES gpus (id),
    CONSTRAINT assignments_state_known CHECK (state IN ('asked', 'missing', 'ready', 'withdrawn')),
    CONSTRAINT assignments_reason_coded CHECK (reason ? 'code'),
    CONSTRAINT assignments_generation_counted CHECK (generation >= 2),
    CONSTRAINT assignments_bound_by_report CHECK (bound ? 'report'),
    CONSTRAINT assignments_released_by_report CHECK (released ? 'report'),
    CONSTRAINT assignments_released_is_withdrawn CHECK (released IS NULL OR state = 'withdrawn')
);
CREATE INDEX assignments_by_node ON assignments (node_id) WHERE state <> 'withdrawn';
CREATE INDEX assignments_by_gpu ON assignments (gpu_id) WHERE state <> 'withdrawn';
CREATE INDEX assignments_in_hands ON assignments (node_id) WHERE in_hands;
CREATE INDEX assignments_overstayed ON assignments (booking_id) WHERE in_hands AND state = 'withdrawn';
CREATE INDEX assignments_by_reservation ON assignments (reservation_id);

-- Host resources of one node for a window. A check on one row cannot see time: whoever writes here
-- holds the node's row lock and has the peak over the window tested in the same transaction.
CREATE TABLE host_bookings (
    id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    tenant_id text NOT NULL,
    node_id integer NOT NULL,
    reservation_id text NOT NULL,
    vcpu_milli bigint NOT NULL,
    memory_mib bigint NOT NULL,
    during tstzrange NOT NULL,
    voided_at timestamptz,
    changed_xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    CONSTRAINT host_bookings_pkey PRIMARY KEY (id),
    CONSTRAINT host_bookings_node_fkey FOREIGN KEY (node_id) REFERENCES nodes (id),
    CONSTRAINT host_bookings_reservation_fkey FOREIGN KEY (reservation_id) REFERENCES reservations (id)
        DEFERRABLE INITIALLY DEFERRED,
    CONSTRAINT host_bookings_amount CHECK (
        vcpu_milli >= 0 AND memory_mib >= 0 AND vcpu_milli + memory_mib > 0
    ),
    CONSTRAINT host_bookings_during_half_open CHECK (
        NOT isempty(during) AND lower_inc(during) AND NOT upper_inc(during) AND NOT lower_inf(during)
    ),
    CONSTRAINT host_bookings_void_before_start CHECK (voided_at <= lower(during))
);
CREATE UNIQUE INDEX host_bookings_reservation_key ON host_bookings (reservation_id, node_id)
    WHERE voided_at IS NULL;
CREATE INDEX host_bookings_node ON host_bookings USING gist (node_id, during) WHERE (voided_at IS NULL);
CREATE INDEX host_bookings_changed ON host_bookings (changed_xid);

-- The outbox: appended in the transaction of the change it tells of. xid lets a reader cut where every
-- earlier transaction has ended, because ids are given before commits. No foreign key: an event outlives
-- what it tells of. before and after are the object as it was and became: an event that has one of them
-- is an audit record too.
CREATE TABLE events (
    id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    tenant_id text NOT NULL,
    type text NOT NULL,
    subject text NOT NULL,
    actor text NOT NULL,
    request_id text,
    data jsonb NOT NULL,
    before jsonb,
    after jsonb,
    occurred_at timestamptz NOT NULL,
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    CONSTRAINT events_pkey PRIMARY KEY (id)
);
CREATE INDEX events_by_subject ON events (subject, xid, id);
CREATE INDEX events_by_tenant ON events (tenant_id, xid, id);

-- Where a tenant wants to be told. What is told is decided by types (how an event's type begins, any
-- where it is empty). read_xid and read_id are how far its tenant's events have become deliveries. The
-- signing secret is derived from the server's key, the id and secret_version: it is stored nowhere.
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

-- One event on its way to one webhook. A delivered one is deleted; one that was tried for too long is
-- dead, and stays until somebody sends it again.
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
