"""Nodes and what is on them: inventory in, atoms and host resources out."""
