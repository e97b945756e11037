-- What nodes are asked to be, what they say that they are, and the gate between the two.

ALTER TABLE nodes
    ADD COLUMN agent text,
    ADD COLUMN mig_layout_from text NOT NULL DEFAULT 'pool',
    ADD COLUMN spec_generation bigint NOT NULL DEFAULT 1,
    ADD COLUMN report_sequence bigint,
    ADD COLUMN observed_generation bigint,
    ADD COLUMN observed_at timestamptz,
    ADD COLUMN converged jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN converged_at timestamptz,
    ADD CONSTRAINT nodes_layout_from_known CHECK (mig_layout_from IN ('pool', 'node')),
    ADD CONSTRAINT nodes_spec_counted CHECK (spec_generation >= 1),
    ADD CONSTRAINT nodes_observed_was_asked CHECK (observed_generation BETWEEN 1 AND spec_generation),
    ADD CONSTRAINT nodes_observed_whole CHECK (
        num_nonnulls(report_sequence, observed_generation, observed_at) IN (0, 3)
    ),
    ADD CONSTRAINT nodes_converged_is_object CHECK (jsonb_typeof(converged) = 'object');

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
