"""MIG GPUs of eight memory slices: the profiles, the rules that place them, and the optimum.

Geometry is the package's own, for an H100 of 80 GB: a place is a mask of memory slices. A rule
says how good a place is for the fleet and, among the places of one GPU, which is best; both are
compared as tuples, lower is better, and the first GPU wins among equals.
"""

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Final, NamedTuple

from apportion.geometry import board_by_key
from apportion.geometry.board import Board

BOARD: Final[Board] = board_by_key("h100-sxm5-80gb")
PROFILES: Final[tuple[str, ...]] = (
    "1g.10gb",
    "1g.20gb",
    "2g.20gb",
    "3g.40gb",
    "4g.40gb",
    "7g.80gb",
)
SLICES: Final = 8
FULL: Final = (1 << SLICES) - 1
PLACES: Final[Mapping[str, tuple[int, ...]]] = {
    name: tuple(place.mask & FULL for place in BOARD.profile(name).placements) for name in PROFILES
}
"""The legal places of each profile, the lowest start first."""
SIZES: Final[Mapping[str, int]] = {name: PLACES[name][0].bit_count() for name in PROFILES}
"""Memory slices of each profile."""

Key = tuple[int, ...]


class Judgement(NamedTuple):
    """How good a place is: compared between GPUs, and between the places of one GPU."""

    gpu: Key
    place: Key


Rule = Callable[[str, int, int], Judgement]
"""(profile, busy slices of the GPU, place) to how good that is."""


class Lease(NamedTuple):
    """An instance of a profile somewhere."""

    profile: str
    gpu: int
    mask: int
    holder: str = ""


class RuleFleet:
    """A fleet under one rule."""

    def __init__(self, rule: Rule, gpus: int) -> None:
        self.busy = [0] * gpus
        self._best = cache(partial(_best, rule))

    def place(self, profile: str) -> Lease | None:
        """Take the best place of the best GPU."""
        offers = {busy: self._best(profile, busy) for busy in set(self.busy)}
        fitting = {busy: offer for busy, offer in offers.items() if offer is not None}
        if not fitting:
            return None
        wanted = min(offer[0].gpu for offer in fitting.values())
        gpu = next(
            at
            for at, busy in enumerate(self.busy)
            if busy in fitting and fitting[busy][0].gpu == wanted
        )
        lease = Lease(profile, gpu, fitting[self.busy[gpu]][1])
        self.busy[gpu] |= lease.mask
        return lease

    def free(self, lease: Lease) -> None:
        """Give the slices back."""
        self.busy[lease.gpu] &= ~lease.mask


def _best(rule: Rule, profile: str, busy: int) -> tuple[Judgement, int] | None:
    free = [place for place in PLACES[profile] if not place & busy]
    return min(((rule(profile, busy, place), place) for place in free), default=None)


# -- rules -----------------------------------------------------------------------------------------


def spread(_profile: str, busy: int, place: int) -> Judgement:
    """Take the emptiest GPU, the lowest start."""
    return Judgement((busy.bit_count(),), (place,))


def first_low(_profile: str, _busy: int, place: int) -> Judgement:
    """Take the first GPU, the lowest start; in the order of names, as DRA does."""
    return Judgement((), (place,))


def first_high(_profile: str, _busy: int, place: int) -> Judgement:
    """Take the first GPU, the highest start."""
    return Judgement((), (-place,))


def best_fit(_profile: str, busy: int, place: int) -> Judgement:
    """Take the fullest GPU, the lowest start."""
    return Judgement((-busy.bit_count(),), (place,))


def hami_ends(profile: str, _busy: int, place: int) -> Judgement:
    """HAMi until August 2026: the first GPU; 1g and 3g from its top, others from its bottom."""
    return Judgement((), (-place if profile[:2] in {"1g", "3g"} else place,))


def hami_runs(_profile: str, busy: int, place: int) -> Judgement:
    """HAMi since: the first GPU, where the longest run of free slices is left, then most places."""
    left = FULL & ~(busy | place)
    run = max((size for size in range(1, SLICES + 1) if _has_run(left, size)), default=0)
    survive = sum(not at & ~left for places in PLACES.values() for at in places)
    return Judgement((), (-run, -survive, place))


def fragmentation(_profile: str, busy: int, place: int) -> Judgement:
    """Where what is lost to the six profiles, all weighted equally, grows least."""
    return Judgement((_lost(busy | place) - _lost(busy),), (place,))


@cache
def _lost(busy: int) -> int:
    """Return the free slices that a profile cannot use, summed over the profiles."""
    free = FULL & ~busy
    lost = 0
    for places in PLACES.values():
        usable = 0
        for place in places:
            usable |= 0 if place & busy else place
        lost += (free & ~usable).bit_count()
    return lost


def _has_run(free: int, size: int) -> bool:
    run = (1 << size) - 1
    return any(free >> at & run == run for at in range(SLICES - size + 1))


RULES: Final[Mapping[str, Rule]] = {
    "spread": spread,
    "firstfit_low": first_low,
    "firstfit_high": first_high,
    "bestfit": best_fit,
    "hami_ends": hami_ends,
    "hami_runs": hami_runs,
    "dra": first_low,
    "fragmentation": fragmentation,
}


# -- the optimum -----------------------------------------------------------------------------------


def fit_in(counts: Mapping[str, int], gpus: int) -> bool:
    """Tell whether instances can lie on so many GPUs in any way at all.

    The two halves of a GPU do not meddle with each other but for 7g. The lower one holds a 4g, a
    3g, or two pairs of slices; the upper one a 3g, or a pair and an odd pair, of which 1g can use
    one slice only. So 3g belong above while there is room, and 1g with double memory on odd pairs.
    """
    lower = gpus - counts["7g.80gb"] - counts["4g.40gb"]
    upper = gpus - counts["7g.80gb"]
    above = min(counts["3g.40gb"], max(0, upper))
    upper -= above
    lower -= counts["3g.40gb"] - above
    if min(lower, upper) < 0:
        return False
    odd = min(counts["1g.20gb"], upper)
    pairs = counts["2g.20gb"] + counts["1g.20gb"] - odd
    singles = max(0, counts["1g.10gb"] - (upper - odd))
    return pairs + (singles + 1) // 2 <= 2 * lower + upper


def fewest(counts: Mapping[str, int]) -> int:
    """Return the fewest GPUs that hold the instances: the optimum over the 28 maximal patterns."""
    low, high = 0, sum(counts.values())
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fit_in(counts, middle) else (middle + 1, high)
    return low


class Migrating:
    """The oracle: instances move without limit or cost, so one fits if all can be packed anew."""

    def __init__(self, gpus: int) -> None:
        self._gpus = gpus
        self._counts: dict[str, int] = dict.fromkeys(PROFILES, 0)

    def place(self, profile: str) -> Lease | None:
        """Take it if the fleet can hold it beside all others."""
        self._counts[profile] += 1
        if fit_in(self._counts, self._gpus):
            return Lease(profile, 0, 0)
        self._counts[profile] -= 1
        return None

    def free(self, lease: Lease) -> None:
        """Take it away."""
        self._counts[lease.profile] -= 1


def volume(counts: Mapping[str, int], sizes: Mapping[str, int], gpu: int) -> int:
    """Return the fewest GPUs by volume alone."""
    return -(-sum(count * sizes[profile] for profile, count in counts.items()) // gpu)
