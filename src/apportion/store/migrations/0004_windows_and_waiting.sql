-- Windows with slack, without an end, and in series; places with conditions; and waiting in order, with
-- the story of why.

ALTER TABLE reservations
    ADD COLUMN placement jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN members integer NOT NULL DEFAULT 1,
    ADD COLUMN end_before timestamptz,
    ADD COLUMN open_ended boolean NOT NULL DEFAULT false,
    ADD COLUMN series_id text,
    ADD COLUMN priority integer NOT NULL DEFAULT 0,
    ADD COLUMN end_told timestamptz;

ALTER TABLE reservations
    DROP CONSTRAINT reservations_asks_for_time,
    ADD CONSTRAINT reservations_asks_for_time CHECK (
        num_nonnulls(duration, asked_end) = CASE WHEN open_ended THEN 0 ELSE 1 END
        AND coalesce(asked_end > asked_start, duration > '0'::interval, open_ended)
    ),
    ADD CONSTRAINT reservations_slack_has_length CHECK (
        end_before IS NULL OR coalesce(duration > '0'::interval AND end_before > created_at, false)
    ),
    ADD CONSTRAINT reservations_members_counted CHECK (members BETWEEN 1 AND 64),
    ADD CONSTRAINT reservations_placement_is_object CHECK (jsonb_typeof(placement) = 'object');

-- Who waits is tried by the priority of the offer, then by age.
DROP INDEX reservations_pending;
CREATE INDEX reservations_pending ON reservations (priority DESC, created_at, id)
    WHERE state = 'pending';
CREATE INDEX reservations_by_series ON reservations (tenant_id, series_id, created_at, id)
    WHERE series_id IS NOT NULL;

-- A gang lies on several nodes, and holds of each one's host what its members there need together.
ALTER TABLE host_bookings
    DROP CONSTRAINT host_bookings_reservation_key,
    ADD CONSTRAINT host_bookings_reservation_key UNIQUE (reservation_id, node_id);

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
