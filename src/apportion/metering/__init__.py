"""What was used, in exact GPU hours, read from bookings."""
