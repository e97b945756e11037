"""The nearest cut of a board to one that it cannot have."""

from collections import Counter
from collections.abc import Mapping, Sequence

from apportion.geometry.board import Board, Profile
from apportion.geometry.profile_names import ProfileName
from apportion.geometry.search import follow, place_all


def largest_first(name: ProfileName) -> tuple[int, int, str]:
    """Order names by compute slices, then memory, both falling, then by spelling."""
    return -name.compute, -name.gigabytes, str(name)


def nearest_cut(cut: Mapping[ProfileName, int], board: Board) -> tuple[Profile, ...]:
    """Return the instances that come nearest to a cut and that one empty GPU of the board can hold.

    A profile that the board lacks is read as its nearest one. Then as few compute slices as
    possible are dropped, and in each dropped instance's place comes the largest smaller one of its
    kind that still fits, if any does.
    """
    wanted: Counter[str] = Counter()
    for name, count in sorted(cut.items(), key=lambda item: largest_first(item[0])):
        wanted[board.nearest_profile(name).name] += count
    own = {profile.name: profile for profile in board.profiles}
    kept = _most_of([(own[name], count) for name, count in wanted.items()])
    for name in (wanted - Counter(profile.name for profile in kept)).elements():
        smaller = _largest_below(own[name], kept, board)
        if smaller is None:
            break
        kept = (*kept, smaller)
    return kept


def _most_of(wanted: Sequence[tuple[Profile, int]]) -> tuple[Profile, ...]:
    """Return the part of what is wanted that fits and keeps the most compute, then memory."""
    best: tuple[Profile, ...] = ()

    def size(kept: tuple[Profile, ...]) -> tuple[int, int]:
        return sum(p.compute_slices for p in kept), sum(p.memory_slices or 0 for p in kept)

    def go_on(index: int, reached: set[int], kept: tuple[Profile, ...]) -> None:
        nonlocal best
        if index == len(wanted):
            best = max(best, kept, key=size)
            return
        profile, count = wanted[index]
        for taken in range(count + 1):
            go_on(index + 1, reached, (*kept, *[profile] * taken))
            reached = follow(reached, profile)
            if not reached:
                return

    go_on(0, {0}, ())
    return best


def _largest_below(dropped: Profile, kept: Sequence[Profile], board: Board) -> Profile | None:
    smaller = [
        profile
        for profile in board.profiles
        if profile.attributes == dropped.attributes
        and profile.compute_slices < dropped.compute_slices
        and place_all(board, (*kept, profile)) is not None
    ]
    return min(smaller, key=lambda profile: largest_first(profile.parsed), default=None)
