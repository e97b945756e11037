-- Nodes whose agent reports without a key can be stale as well, and what is stale is shown with its pool.

DROP INDEX nodes_heard_of;
CREATE INDEX nodes_heard_of ON nodes (pool_id) WHERE agent IS NOT NULL AND stale_since IS NULL;
CREATE INDEX nodes_stale ON nodes (pool_id) WHERE stale_since IS NOT NULL;
