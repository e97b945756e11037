"""Asks in, bookings out: admission, placement, waiting, and the life of a reservation."""
