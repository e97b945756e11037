"""Exact quantities: fractions of a GPU, bytes, unit sets, windows of time, ids. Pure."""
