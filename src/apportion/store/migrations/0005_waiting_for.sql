-- What waits says what could help it, and is tried again when that changes.

ALTER TABLE quotas ADD COLUMN changed_xid xid8 NOT NULL DEFAULT pg_current_xact_id();
CREATE INDEX quotas_changed ON quotas (changed_xid);

ALTER TABLE reservations
    ADD COLUMN waits_for text[] NOT NULL DEFAULT '{}',
    ADD COLUMN waits_xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    ADD COLUMN fails_at timestamptz;
UPDATE reservations SET fails_at = least(pending_until, coalesce(end_before - duration, asked_start))
WHERE state = 'pending';
ALTER TABLE reservations
    ADD CONSTRAINT reservations_waiting_ends CHECK (state <> 'pending' OR fails_at IS NOT NULL);
CREATE INDEX reservations_waiting ON reservations (waits_xid) WHERE state = 'pending';
-- When waiting ends without a place: looked up by the clock, never by reading all that wait.
CREATE INDEX reservations_to_fail ON reservations (fails_at) WHERE state = 'pending';
