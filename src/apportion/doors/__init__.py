"""What the routes of all rooms share: the way in, rights, problems, pages and idempotency keys."""
