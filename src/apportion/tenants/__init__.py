"""Who is calling: tenants and their tokens."""
