"""What other installed packages add to this one: their entry points, by group and name."""

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

ACCEPTANCE: Final = "apportion.acceptance"
"""Acceptance checks, by the name that a pool's policy has for them."""


def names(group: str) -> frozenset[str]:
    """Return the names that installed packages give in a group; none of them is loaded."""
    return frozenset(_points(group))


def load(group: str, name: str) -> Any:
    """Return what a package gives under that name; None where none does."""
    point = _points(group).get(name)
    return None if point is None else point.load()


@cache
def _points(group: str) -> dict[str, EntryPoint]:
    """Read what is installed once: it costs more than all else that a request does."""
    return {point.name: point for point in entry_points(group=group)}
