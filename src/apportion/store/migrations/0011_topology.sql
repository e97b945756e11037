-- How well the GPUs of a reservation reach each other, as found when it was placed.

ALTER TABLE reservations
    ADD COLUMN topology jsonb,
    ADD CONSTRAINT reservations_topology_scored CHECK (topology ? 'score');
