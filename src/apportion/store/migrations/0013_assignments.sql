-- What nodes with an agent are asked to hand out, for each booking whose window has begun.

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
    CONSTRAINT assignments_pkey PRIMARY KEY (booking_id),
    CONSTRAINT assignments_booking_fkey FOREIGN KEY (booking_id) REFERENCES bookings (id),
    CONSTRAINT assignments_tenant_fkey FOREIGN KEY (tenant_id) REFERENCES tenants (id),
    CONSTRAINT assignments_node_fkey FOREIGN KEY (node_id) REFERENCES nodes (id),
    CONSTRAINT assignments_gpu_fkey FOREIGN KEY (gpu_id) REFERENCES gpus (id),
    CONSTRAINT assignments_state_known CHECK (state IN ('asked', 'missing', 'ready', 'withdrawn')),
    CONSTRAINT assignments_reason_coded CHECK (reason ? 'code'),
    CONSTRAINT assignments_generation_counted CHECK (generation >= 2)
);
CREATE INDEX assignments_by_node ON assignments (node_id) WHERE state <> 'withdrawn';
CREATE INDEX assignments_by_gpu ON assignments (gpu_id) WHERE state <> 'withdrawn';
CREATE INDEX assignments_by_reservation ON assignments (reservation_id);

-- What had begun before is asked for from now on.
INSERT INTO assignments (
    booking_id, tenant_id, node_id, gpu_id, reservation_id, piece, generation, state, since, reason
)
SELECT
    bookings.id, bookings.tenant_id, nodes.id, gpus.id, reservation_id, piece, spec_generation + 1, 'asked',
    reservations.updated_at,
    jsonb_object('{code,device_asked,message,"its node was asked for it, and has yet to read that"}')
FROM reservations
JOIN bookings ON reservation_id = reservations.id AND voided_at IS NULL
JOIN gpus ON gpus.id = bookings.gpu_id
JOIN nodes ON nodes.id = gpus.node_id AND nodes.agent IS NOT NULL
JOIN pools ON pools.id = nodes.pool_id AND pools.agent <> 'none'
WHERE reservations.state = 'active';
UPDATE nodes SET spec_generation = spec_generation + 1 WHERE id IN (SELECT node_id FROM assignments);
