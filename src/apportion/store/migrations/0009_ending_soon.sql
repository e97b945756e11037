-- When the tenant is told that a reservation ends soon; null once that was told, and where it never is.

ALTER TABLE reservations RENAME COLUMN end_told TO tell_end_at;
CREATE INDEX reservations_to_tell ON reservations (tell_end_at)
    WHERE state = 'active' AND tell_end_at IS NOT NULL;
