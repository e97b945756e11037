"""What is stranded on a GPU: free units that no profile can use beside what is there."""

from dataclasses import dataclass
from functools import cache

from apportion.geometry.board import Board
from apportion.geometry.search import open_places


@dataclass(frozen=True, slots=True, kw_only=True)
class Stranded:
    """Free units that no profile of the board can use beside what is there.

    ``memory_mask`` are those memory slices, ``compute_slices`` the free compute slices beyond the
    most that more instances could ever use; None when the caller did not say how many are in use.
    """

    memory_mask: int
    compute_slices: int | None

    @property
    def memory_slices(self) -> int:
        """How many memory slices are stranded."""
        return self.memory_mask.bit_count()


def stranded(board: Board, occupied: int = 0, *, compute_used: int | None = None) -> Stranded:
    """Return what no profile can use any more.

    ``compute_used`` is the compute slices of what is there: the units alone do not tell, since a 1g
    of double memory takes as many memory slices as a 2g. InvalidStateError as in `place_all`.
    """
    ruler = board.known_ruler()
    usable = 0
    for placement in open_places(board, occupied):
        usable |= placement.mask
    lost = None
    if compute_used is not None:
        lost = board.compute_slices - compute_used - _most_compute(board, occupied)
    return Stranded(memory_mask=ruler.memory_mask & ~occupied & ~usable, compute_slices=lost)


def _most_compute(board: Board, occupied: int) -> int:
    """Return the most compute slices that more instances can use beside the occupied units."""
    compute = {profile.name: profile.compute_slices for profile in board.profiles}
    places = {(p.mask, compute[p.profile]) for p in open_places(board, occupied)}

    @cache
    def best(mask: int) -> int:
        return max((slices + best(mask | m) for m, slices in places if not mask & m), default=0)

    return best(occupied)
