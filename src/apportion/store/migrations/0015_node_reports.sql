-- What nodes say beside their inventory, whether they are heard of, and what new ones must pass.

ALTER TABLE nodes
    ADD COLUMN report_digest bytea,
    ADD COLUMN outcomes jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN acceptance jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN accepted_at timestamptz,
    ADD COLUMN stale_since timestamptz,
    ADD CONSTRAINT nodes_outcomes_is_object CHECK (jsonb_typeof(outcomes) = 'object'),
    ADD CONSTRAINT nodes_acceptance_is_object CHECK (jsonb_typeof(acceptance) = 'object');
CREATE INDEX nodes_heard_of ON nodes (pool_id) WHERE public_key IS NOT NULL AND stale_since IS NULL;

-- Nodes that take work already are not new ones.
UPDATE nodes SET accepted_at = converged_at;
