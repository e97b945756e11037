-- Lists of reservations cost the same at any depth, whatever they are narrowed down to.

CREATE INDEX reservations_by_pool ON reservations (tenant_id, pool_id, created_at, id)
    WHERE pool_id IS NOT NULL;
CREATE INDEX reservations_by_name ON reservations (tenant_id, name, created_at, id)
    WHERE name IS NOT NULL;
CREATE INDEX reservations_open ON reservations (tenant_id, created_at, id)
    WHERE state IN ('pending', 'placed', 'active', 'ending');
CREATE INDEX reservations_failed ON reservations (tenant_id, created_at, id)
    WHERE state = 'failed';
