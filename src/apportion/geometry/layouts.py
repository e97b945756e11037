"""Layouts: what one GPU is cut into, by name.

    all-disabled              MIG is off
    all-enabled               MIG is on, without instances
    all-PROFILE               as many instances of one profile as the board can hold
    all-balanced              2x1g + 2g + 3g; on boards of four compute slices 2x1g + 2g
    mixed:[Nx]PROFILE+...     these instances, such as mixed:3g.40gb+2x2g.20gb

A name that cannot be on a board is refused with the reason and the nearest layout that can.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from apportion.errors import InvalidInputError
from apportion.geometry.boards import Board, Placement, Profile
from apportion.geometry.profile_names import ProfileName, parse_profile
from apportion.geometry.search import addable, place_all, why_not

GRAMMAR: Final = (
    "all-disabled, all-enabled, all-balanced, all-PROFILE, or mixed:[Nx]PROFILE+[Nx]PROFILE..."
)

# A `+` before a digit begins the next term; before a letter it belongs to the profile's name.
_NEXT_TERM: Final = re.compile(r"\+(?=[0-9])", re.ASCII)
_TERM: Final = re.compile(r"(?:(?P<count>[0-9]{1,3})x)?(?P<profile>.+)", re.ASCII | re.IGNORECASE)
_BALANCED: Final = {7: (3, 2, 1, 1), 4: (2, 1, 1)}

type Counts = Sequence[tuple[ProfileName, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What one GPU of a board is cut into, with the place of every instance.

    Equal when the cut is equal, whatever it was called. ``placements`` are in order of their start.
    """

    board: str
    mig_enabled: bool
    placements: tuple[Placement, ...] = ()
    name: str = field(compare=False)

    @property
    def counts(self) -> Mapping[str, int]:
        """How many instances of each profile, the largest first."""
        largest_first = sorted(self.placements, key=lambda p: (-p.size, p.profile))
        return Counter(placement.profile for placement in largest_first)

    @property
    def mask(self) -> int:
        """The units of the board's ruler that its instances take."""
        mask = 0
        for placement in self.placements:
            mask |= placement.mask
        return mask


def parse_layout(text: str, board: Board, *, field: str = "layout") -> Layout:
    """Read a layout's name for a board.

    InvalidInputError with ``details["reason"]`` `not_a_layout` when the text is none, and
    `impossible_layout` when the board cannot be cut so: the message says why, and
    ``details["nearest"]`` is the nearest layout that can exist. InvalidStateError when the board's
    geometry is unknown and the layout has instances.
    """
    lowered = text.lower()
    if lowered in {"all-disabled", "all-enabled"}:
        return Layout(board=board.key, mig_enabled=lowered == "all-enabled", name=lowered)
    kind, counts = _counts(text, board, field)
    return layout_of(counts, board, field=field, given=text, kind=kind)
