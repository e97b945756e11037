-- Reservations that come again: what they have in common.

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
ALTER TABLE reservations
    ADD CONSTRAINT reservations_series_fkey FOREIGN KEY (series_id) REFERENCES series (id);
