"""Pools: the unit that is scheduled into, with its quotas and its policy."""
