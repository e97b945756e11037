"""Concurrent attacks on a real database, judged by what shares nothing with the services."""
