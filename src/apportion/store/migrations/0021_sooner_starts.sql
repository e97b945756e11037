-- A start that is reserved is looked at again when something that could make it sooner has changed.

CREATE INDEX reservations_reserved_waiting ON reservations (waits_xid)
    WHERE state = 'placed' AND reserved_start;
