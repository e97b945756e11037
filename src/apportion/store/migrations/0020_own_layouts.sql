-- MIG layouts that nodes have from their own files, whatever their pools ask for.

ALTER TABLE nodes
    ADD COLUMN own_layout text,
    ADD CONSTRAINT nodes_own_layout_named CHECK (own_layout <> '');
