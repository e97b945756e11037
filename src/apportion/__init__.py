"""Apportion shares GPUs by the slice and accounts for every one."""
