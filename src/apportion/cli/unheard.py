"""Nodes that nobody hears of, in words: said beside every number that they are a part of."""

from datetime import datetime

from apportion.cli.times import both_zones


def unheard(nodes: int, gpus: int, since: datetime) -> str:
    """Say how many they are: ``2 nodes with 16 GPUs, the first since 2026-11-30 10:00``."""
    machines = f"{_counted(nodes, 'node')} with {_counted(gpus, 'GPU')}"
    return f"{machines}, the first since {both_zones(since)}"


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
