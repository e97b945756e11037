"""The points around each write of a journal: where tests stop the process."""

from collections.abc import Callable

Hook = Callable[[str], None]
"""Hears ``before STEP`` and ``after STEP``."""


def nothing(_point: str) -> None:
    """Tell nobody."""
