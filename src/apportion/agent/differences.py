"""Where a driver says otherwise than the package's table of boards. The driver is right."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from apportion.agent.nvml import GpuFacts, Profile
from apportion.errors import InvalidInputError
from apportion.geometry import Board, find_board
from apportion.geometry import Profile as KnownProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One figure of one profile: as the driver reports it, and as the package has it.

    ``profile`` is None where it is the board itself that is not known.
    """

    profile: str | None
    figure: str
    driver: str
    package: str


def board_of(facts: GpuFacts) -> Board | None:
    """Return the board that a GPU is; None where none is known by its name and ids."""
    try:
        return find_board(
            facts.product, memory_mib=facts.memory_mib, pci_device_id=facts.pci_device_id
        )
    except InvalidInputError:
        return None


def differences(board: Board | None, profiles: Sequence[Profile]) -> tuple[Difference, ...]:
    """Compare the profiles of a driver with those of a board; nothing to compare: no difference.

    Figures that no source gave are not compared. Drivers keep a little memory for themselves, each
    another bit: a sixteenth is no difference.
    """
    if not profiles:
        return ()
    if board is None:
        named = ", ".join(each.name for each in profiles)
        return (Difference(profile=None, figure="board", driver=named, package="not known"),)
    return tuple(_compared(board, profiles))


def _compared(board: Board, profiles: Sequence[Profile]) -> Iterator[Difference]:
    told = {each.name: each for each in profiles}
    known = {each.name: each for each in board.profiles}
    for name in sorted(told.keys() - known.keys()):
        yield Difference(profile=name, figure="profile", driver="has it", package="not known")
    for name in sorted(known.keys() - told.keys()):
        yield Difference(profile=name, figure="profile", driver="not there", package="has it")
    for name in sorted(known.keys() & told.keys()):
        for figure, package, driver in _figures(known[name], told[name]):
            if package is not None and package != driver:
                yield Difference(
                    profile=name, figure=figure, driver=str(driver), package=str(package)
                )


def _figures(known: KnownProfile, told: Profile) -> Iterator[tuple[str, object, object]]:
    """Give what can be compared of a profile: the figure, the package's, the driver's."""
    yield "id", known.id, told.id
    yield "compute_slices", known.compute_slices, told.compute_slices
    yield "max_instances", known.max_instances, told.max_instances
    yield "sm_count", known.sm, told.sm_count
    memory = known.memory_mib
    if memory is not None and 16 * abs(told.memory_mib - memory) > memory:
        yield "memory_mib", memory, told.memory_mib
    places = [f"{place.start}:{place.size}" for place in sorted(told.places)]
    if known.placements:
        expected = sorted((place.start, place.size) for place in known.placements)
        yield "placements", " ".join(f"{a}:{b}" for a, b in expected), " ".join(places)
    for figure in known.engines._fields:
        yield figure, getattr(known.engines, figure), getattr(told.engines, figure)
