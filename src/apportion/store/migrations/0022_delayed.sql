-- What is to begin on units that somebody has not left is put off; delayed_from is when it was to begin.
-- Who has not left is found without reading what is in its holder's hands by the book.

ALTER TABLE reservations ADD COLUMN delayed_from timestamptz,
    ADD CONSTRAINT reservations_delayed_begins_later CHECK (delayed_from <= starts_at);

CREATE INDEX assignments_overstayed ON assignments (booking_id) WHERE in_hands AND state = 'withdrawn';
