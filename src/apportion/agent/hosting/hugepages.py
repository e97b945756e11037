"""The unit ``hugepages``: huge pages that the kernel sets aside, in all: not by NUMA node.

The kernel gives what it finds in one piece, which may be less than it was asked for, and the later
the less; each time it is asked it moves memory about. So it is asked again now and then.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from apportion.agent.host import HUGEPAGE_FOLDERS
from apportion.agent.hosting.comparing import failed
from apportion.agent.points import Hook, nothing
from apportion.agent.units import Mismatch, Outcome, Wanted

_AGAIN: Final = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Pages:
    """Pages of one size: how many there are, and how many of them somebody uses or is promised."""

    total: int
    taken: int


@dataclass(frozen=True, slots=True)
class _Hindrance:
    reason: str
    message: str
    mismatch: Mismatch


class HugePages:
    """The unit of one machine."""

    name: str = "hugepages"

    def __init__(self, root: Path, told: Hook = nothing) -> None:
        """``told`` hears ``before SIZE`` and ``after SIZE`` around each write."""
        self._root = root
        self._told = told
        self._asked: dict[str, tuple[int, int, datetime]] = {}
        """Of each size what was asked for last, what there was then, and when."""

    def converge(self, wanted: Wanted | None, now: datetime) -> Outcome:
        """Set aside as many pages of each size as wanted; where nothing is, what is found stays.

        Pages that somebody uses are never taken away.
        """
        if wanted is None:
            return Outcome(done=True)
        hindrances = [
            each for size, count in wanted.items() for each in self._settle(size, count, now)
        ]
        if not hindrances:
            return Outcome(done=True)
        message = "; ".join(filter(None, (each.message for each in hindrances)))
        return failed(hindrances[0].reason, message, [each.mismatch for each in hindrances])

    def _settle(self, size: str, wanted: int, now: datetime) -> Iterator[_Hindrance]:
        folder = self._root / "sys/kernel/mm/hugepages" / HUGEPAGE_FOLDERS[size]
        if not wanted and not folder.exists():
            return
        pages, reason, message = None, "hugepages_unknown", ""
        try:
            pages = _read(folder)
            goal = max(wanted, pages.taken)
            if pages.total != goal and not self._asked_lately(size, goal, pages.total, now):
                self._ask(folder, size, goal)
                pages = _read(folder)
                self._asked[size] = goal, pages.total, now
            if pages.total == wanted:
                return
            reason = "hugepages_short" if pages.total < wanted else "hugepages_in_use"
        except (OSError, ValueError) as error:
            reason = reason if pages is None else "hugepages_refused"
            message = f"{size}: {getattr(error, 'strerror', None) or error}"
        found = None if pages is None else str(pages.total)
        yield _Hindrance(reason, message, Mismatch(field=size, wanted=str(wanted), found=found))

    def _asked_lately(self, size: str, goal: int, total: int, now: datetime) -> bool:
        """Tell whether the kernel was asked for this lately, and gave what there still is."""
        asked, given, at = self._asked.get(size, (None, None, now))
        return (asked, given) == (goal, total) and abs(now - at) < _AGAIN

    def _ask(self, folder: Path, size: str, goal: int) -> None:
        self._told(f"before {size}")
        (folder / "nr_hugepages").write_text(f"{goal}\n", "ascii")
        self._told(f"after {size}")


def _read(folder: Path) -> Pages:
    """Read what there is; OSError or ValueError where the kernel does not say.

    Pages that are promised (mapped, and not touched yet) still count as free for it.
    """
    total, free, promised = (
        int((folder / name).read_text("ascii"))
        for name in ("nr_hugepages", "free_hugepages", "resv_hugepages")
    )
    return Pages(total, max(0, total - free + promised))
