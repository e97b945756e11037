-- A reservation that was moved leaves voided rows behind, and may come back to a node later.

ALTER TABLE host_bookings DROP CONSTRAINT host_bookings_reservation_key;
CREATE UNIQUE INDEX host_bookings_reservation_key ON host_bookings (reservation_id, node_id)
    WHERE voided_at IS NULL;
