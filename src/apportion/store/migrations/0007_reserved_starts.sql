-- What has waited long gets a start in the future that others cannot take.

ALTER TABLE reservations
    ADD COLUMN reserve_at timestamptz,
    ADD COLUMN reserved_start boolean NOT NULL DEFAULT false;
CREATE INDEX reservations_to_reserve ON reservations (reserve_at, priority DESC, created_at, id)
    WHERE state = 'pending' AND reserve_at IS NOT NULL;
CREATE INDEX reservations_reserved ON reservations (pool_id, starts_at)
    WHERE state = 'placed' AND reserved_start;
