-- Who has a device, by the node's signed word, until the node has taken it back; and the state `ending` until then.

ALTER TABLE assignments
    ADD COLUMN bound jsonb,
    ADD COLUMN released jsonb,
    ADD COLUMN in_hands boolean NOT NULL GENERATED ALWAYS AS (
        released IS NULL
        AND (
            bound IS NOT NULL
            OR (state = 'withdrawn' AND reason ->> 'code' NOT IN ('window_over', 'device_released'))
        )
    ) STORED,
    ADD CONSTRAINT assignments_bound_by_report CHECK (bound ? 'report'),
    ADD CONSTRAINT assignments_released_by_report CHECK (released ? 'report'),
    ADD CONSTRAINT assignments_released_is_withdrawn CHECK (released IS NULL OR state = 'withdrawn');
DROP INDEX assignments_not_given_back;
CREATE INDEX assignments_in_hands ON assignments (node_id) WHERE in_hands;
-- What is bound already is told again in the next report.
UPDATE nodes SET report_digest = NULL;

ALTER TABLE bookings
    ADD COLUMN due_back timestamptz,
    ADD CONSTRAINT bookings_due_back_before_the_end CHECK (
        due_back BETWEEN upper(planned) AND upper(during)
    );

DROP INDEX reservations_to_tell;
CREATE INDEX reservations_to_tell ON reservations (tell_end_at)
    WHERE state IN ('placed', 'active') AND tell_end_at IS NOT NULL;
CREATE INDEX reservations_ending ON reservations (id) WHERE state = 'ending';
