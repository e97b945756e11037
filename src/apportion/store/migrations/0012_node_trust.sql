-- Nodes that join by themselves with a key of their own, and the tokens that let them.

ALTER TABLE nodes
    ADD COLUMN public_key bytea,
    ADD COLUMN attestor text,
    ADD COLUMN enrolled_at timestamptz,
    ADD COLUMN revoked_at timestamptz,
    ADD CONSTRAINT nodes_public_key_key UNIQUE (public_key),
    ADD CONSTRAINT nodes_public_key_length CHECK (octet_length(public_key) = 32),
    ADD CONSTRAINT nodes_enrolled_whole CHECK (
        num_nonnulls(public_key, attestor, enrolled_at) IN (0, 3)
    ),
    ADD CONSTRAINT nodes_revoked_had_key CHECK (revoked_at IS NULL OR public_key IS NOT NULL);

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
