"""What the replays share: work spread over the processors, whether in a hurry, and tables."""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Final, TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")

QUICK: Final = os.environ.get("QUICK", "") not in {"", "0"}
"""Fewer seeds: a run of under a minute that shows that all works, not how well."""


def spread(work: Callable[[Job], Result], jobs: Sequence[Job]) -> list[Result]:
    """Do all jobs, one process a processor; results are in the order of the jobs."""
    with ProcessPoolExecutor() as processes:
        return list(processes.map(work, jobs))


def show(title: str, header: Sequence[str], rows: Iterable[Sequence[str | float | None]]) -> None:
    """Print a table; numbers with two decimals, what is not there as a dash."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    print(f"\n{title}")
    for row in (header, *cells):
        first, *others = (
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join((first, *others)))


def _cell(value: str | float | None) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:.2f}"
