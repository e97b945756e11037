"""What fits on one GPU, where, beside what is there; what can still be added.

Every answer is exact: sets of reachable masks are followed instance by instance, and the ruler is
so short that they stay in the hundreds. Occupied units are a mask of the board's ruler;
`units.WHOLE` is all of them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from apportion.geometry.board import Board, Placement, Profile


def place_all(
    board: Board, profiles: Sequence[Profile], occupied: int = 0
) -> tuple[Placement, ...] | None:
    """Return legal, disjoint placements for all profiles, in their order, or None.

    Of all ways the one is chosen that keeps the most profiles, then the most placements, possible
    afterwards; among equals the one with the lowest starts in the order given. InvalidStateError
    when the board's geometry is unknown.
    """
    board.known_ruler()
    reached: dict[int, tuple[Placement, ...]] = {occupied: ()}
    for profile in profiles:
        step: dict[int, tuple[Placement, ...]] = {}
        for mask, chosen in reached.items():
            for placement in profile.placements:
                if not mask & placement.mask:
                    step.setdefault(mask | placement.mask, (*chosen, placement))
        reached = step
    if not reached:
        return None
    return reached[max(reached, key=lambda mask: _openness(board, mask))]


def follow(reached: Iterable[int], profile: Profile) -> set[int]:
    """Return every mask that one more instance of the profile can make of the masks reached."""
    return {
        mask | placement.mask
        for mask in reached
        for placement in profile.placements
        if not mask & placement.mask
    }


def open_places(board: Board, occupied: int) -> Iterable[Placement]:
    """Yield every placement that is clear of the occupied units."""
    for profile in board.profiles:
        for placement in profile.placements:
            if not occupied & placement.mask:
                yield placement


def addable(board: Board, occupied: int = 0) -> Mapping[str, int]:
    """Return for each profile how many more of it alone would fit.

    InvalidStateError as in `place_all`.
    """
    board.known_ruler()
    return {profile.name: _most(profile, occupied) for profile in board.profiles}


def why_not(board: Board, profiles: Iterable[Profile], occupied: int = 0) -> str | None:
    """Say in one sentence why `place_all` finds no place, or None when it finds one.

    The simplest true reason comes first: too many of one kind, then slices in total, then an
    engine, and only then the placements.
    """
    wanted = tuple(profiles)
    if place_all(board, wanted, occupied) is not None:
        return None
    counts = Counter(profile.name for profile in wanted)
    most = addable(board, occupied)
    beside = " beside what is there" if occupied else ""
    for name, count in counts.items():
        if most[name] == 0:
            return f"no place for {name} on {board.model}{beside}"
        if count > most[name]:
            return f"{count} x {name}: at most {most[name]} on {board.model}{beside}"
    return _too_many_slices(board, wanted, occupied) or _clash(board, wanted, occupied, beside)


def _too_many_slices(board: Board, wanted: Sequence[Profile], occupied: int) -> str | None:
    ruler = board.known_ruler()
    compute = sum(profile.compute_slices for profile in wanted)
    memory = sum(profile.memory_slices or 0 for profile in wanted)
    free = (ruler.memory_mask & ~occupied).bit_count()
    if compute > board.compute_slices:
        return f"{compute} compute slices are needed and {board.model} has {board.compute_slices}"
    if memory > free:
        has = "has" if free == ruler.memory_units else "has free"
        return (
            f"{memory} memory slices are needed and {board.model} {has} {free} "
            f"(compute slices would do: {compute} of {board.compute_slices})"
        )
    return None


def _clash(board: Board, wanted: Sequence[Profile], occupied: int, beside: str) -> str:
    """Tell an engine that runs out from places that do not lie side by side."""
    ruler = board.known_ruler()
    ofa = 1 << ruler.memory_units
    media = ruler.mask & ~ruler.memory_mask & ~ofa
    for engine, units in (("OFA", ofa), ("media", media)):
        need = sum(_least(profile, units) for profile in wanted)
        free = (units & ~occupied).bit_count()
        if need > free:
            return f"{_listed(wanted)}: {need} {engine} engines are needed and {free} can be had"
    return f"{_listed(wanted)}: no arrangement of their legal placements fits {board.model}{beside}"


def _least(profile: Profile, units: int) -> int:
    return min((placement.mask & units).bit_count() for placement in profile.placements)


def _listed(wanted: Iterable[Profile]) -> str:
    counts = Counter(profile.name for profile in wanted)
    return " + ".join(f"{count}x{name}" if count > 1 else name for name, count in counts.items())


def _openness(board: Board, occupied: int) -> tuple[int, int]:
    """Measure what stays possible: profiles that still have a place, then places."""
    still = list(open_places(board, occupied))
    return len({placement.profile for placement in still}), len(still)


def _most(profile: Profile, occupied: int) -> int:
    count = 0
    reached = {occupied}
    while True:
        reached = follow(reached, profile)
        if not reached:
            return count
        count += 1
