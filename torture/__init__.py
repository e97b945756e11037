"""Concurrent attacks on a real database, judged by auditors that share nothing with the services."""
