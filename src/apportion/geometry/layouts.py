"""Layouts: what one GPU is cut into, by name.

    all-disabled              MIG is off
    all-enabled               MIG is on, without instances
    all-PROFILE               as many instances of one profile as the board can hold
    all-balanced              3g + 2g + 2x1g; on boards of four compute slices 2g + 2x1g
    mixed:[Nx]PROFILE+...     these instances, such as mixed:3g.40gb+2x2g.20gb

A layout that a board cannot have is refused with the reason and the nearest one that it can.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from apportion.errors import InvalidInputError
from apportion.geometry.board import Board, Placement, Profile
from apportion.geometry.nearest import largest_first, nearest_cut
from apportion.geometry.profile_names import ProfileName, parse_profile
from apportion.geometry.search import addable, place_all, why_not

GRAMMAR: Final = "all-disabled, all-enabled, all-balanced, all-PROFILE, mixed:[Nx]PROFILE+..."

# A `+` before a digit begins the next term; before a letter it belongs to the profile's name.
_NEXT_TERM: Final = re.compile(r"\+(?=[0-9])", re.ASCII)
_TERM: Final = re.compile(r"(?:(?P<count>[1-9][0-9]{0,2})x)?(?P<profile>.+)", re.ASCII)
_BALANCED: Final = {7: (3, 2, 1, 1), 4: (2, 1, 1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What one GPU of a board is cut into, with the place of every instance.

    Two layouts are equal when the cut is, whatever each was called. ``placements`` are in order of
    their start; there are none when MIG is off, and none when it is on without instances.
    """

    name: str = field(compare=False)
    board: str
    mig_enabled: bool
    placements: tuple[Placement, ...] = ()

    @property
    def counts(self) -> Mapping[str, int]:
        """How many instances of each profile, the largest first."""
        names = (parse_profile(placement.profile) for placement in self.placements)
        return Counter(str(name) for name in sorted(names, key=largest_first))

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
    ``details["nearest"]`` names the nearest layout that can exist, ``details["absent"]`` the
    profiles that the board does not have. InvalidStateError when the layout has instances and the
    board's geometry is unknown.
    """
    lowered = text.lower()
    kind, _, rest = lowered.partition("-")
    cut: Mapping[ProfileName, int] = {}
    if lowered == "all-disabled":
        return Layout(name=lowered, board=board.key, mig_enabled=False)
    if lowered == "all-balanced":
        cut = _balanced(board)
    elif kind == "all" and rest != "enabled":
        cut = _all_of(_profile_name(rest, text, field), board)
    elif lowered.startswith("mixed:"):
        cut = _mixed(lowered.removeprefix("mixed:"), text, field)
    elif lowered != "all-enabled":
        raise _not_a_layout(text, field, "not a layout")
    return layout_of(cut, board, name=lowered, field=field)


def layout_of(
    cut: Mapping[ProfileName, int], board: Board, *, name: str, field: str = "layout"
) -> Layout:
    """Place so many instances of each profile on an empty GPU; errors as `parse_layout` gives them.

    ``name`` is what the layout is called, in it and in messages.
    """
    if not cut:
        return Layout(name=name, board=board.key, mig_enabled=True)
    board.known_ruler()
    own = {profile.name: profile for profile in board.profiles}
    absent = [str(profile) for profile in cut if str(profile) not in own]
    if absent:
        reason = f"{board.model} has no profile {absent[0]} (it has {board.profiles_text})"
        raise _impossible(reason, cut, board, name=name, field=field, absent=absent)
    wanted = [own[str(profile)] for profile, count in cut.items() for _ in range(count)]
    placements = place_all(board, wanted)
    if placements is None:
        raise _impossible(why_not(board, wanted) or "", cut, board, name=name, field=field)
    ordered = tuple(sorted(placements, key=lambda placement: placement.start))
    return Layout(name=name, board=board.key, mig_enabled=True, placements=ordered)


def layout_name(profiles: Sequence[Profile], board: Board) -> str:
    """Return the name of the layout that has these instances: `all-PROFILE` where it is that."""
    counts = Counter(p.name for p in sorted(profiles, key=lambda p: largest_first(p.parsed)))
    if not counts:
        return "all-enabled"
    (name, count), *others = counts.items()
    if not others and count == addable(board)[name]:
        return f"all-{name}"
    return "mixed:" + "+".join(f"{n}x{name}" if n > 1 else name for name, n in counts.items())


def _all_of(name: ProfileName, board: Board) -> Mapping[ProfileName, int]:
    """Return as many of a profile as fit; of one that the board lacks, as of its nearest."""
    board.known_ruler()
    return {name: addable(board)[board.nearest_profile(name).name]}


def _balanced(board: Board) -> Mapping[ProfileName, int]:
    board.known_ruler()
    plain = [profile for profile in board.profiles if not profile.attributes]
    smallest = {profile.compute_slices: profile.parsed for profile in sorted(plain, key=_memory)}
    return Counter(smallest[compute] for compute in _BALANCED[board.compute_slices])


def _memory(profile: Profile) -> int:
    """Order profiles so that of one compute size the one with the least memory comes last."""
    return -(profile.memory_slices or 0)


def _mixed(terms: str, text: str, field: str) -> Mapping[ProfileName, int]:
    cut: Counter[ProfileName] = Counter()
    for term in _NEXT_TERM.split(terms):
        match = _TERM.fullmatch(term)
        if match is None:
            raise _not_a_layout(text, field, "not a layout: a term is empty")
        cut[_profile_name(match["profile"], text, field)] += int(match["count"] or 1)
    return cut


def _profile_name(name: str, text: str, field: str) -> ProfileName:
    try:
        return parse_profile(name)
    except InvalidInputError as error:
        raise _not_a_layout(text, field, f"not a layout: {name}: {error.message}") from None


def _not_a_layout(text: str, field: str, message: str) -> InvalidInputError:
    return InvalidInputError(
        message, field=field, given=text, allowed=GRAMMAR, details={"reason": "not_a_layout"}
    )


def _impossible(
    reason: str,
    cut: Mapping[ProfileName, int],
    board: Board,
    *,
    name: str,
    field: str,
    absent: Sequence[str] = (),
) -> InvalidInputError:
    nearest = layout_name(nearest_cut(cut, board), board)
    return InvalidInputError(
        reason,
        field=field,
        given=name,
        hint=f"The nearest layout that can exist is {nearest}",
        details={
            "reason": "impossible_layout",
            "nearest": nearest,
            "board": board.key,
            "absent": list(absent),
        },
    )
