-- What nodes are not asked for any more and have not taken back.

CREATE INDEX assignments_not_given_back ON assignments (node_id)
WHERE state = 'withdrawn' AND reason ->> 'code' NOT IN ('window_over', 'device_released');
