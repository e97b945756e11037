"""The one table of who has which units of which GPU when; nobody else writes it."""
