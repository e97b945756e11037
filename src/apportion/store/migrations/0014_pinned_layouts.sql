-- The MIG layout that a node is to have whatever its pool asks for.

ALTER TABLE nodes
    ADD COLUMN pinned_layout text,
    ADD CONSTRAINT nodes_pinned_to_something CHECK (pinned_layout <> '');
