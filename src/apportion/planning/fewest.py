"""The strategy ``exact``: provably the fewest GPUs, starting from the better greedy packing.

Asks that are met alike are one kind, and how many of which kinds one GPU can hold is told by the
rules that the greedy strategies use: legal placements of MIG instances, slots or shares, holders.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Sequence
from datetime import timedelta
from fractions import Fraction
from math import ceil, lcm
from operator import itemgetter
from typing import Any, NamedTuple

from apportion.geometry.search import follow
from apportion.planning.asks import MOST_HOLDERS
from apportion.planning.capabilities import ClusterGpuCaps
from apportion.planning.covering import Covering, Sort, Whole, cover
from apportion.planning.isolation import Mechanism
from apportion.planning.packing import GREEDY, Item, Packer, Proof
from apportion.solving import TIME_LIMIT, check_installed
from apportion.solving.flows import Counts
from apportion.solving.patterns import Patterns, TooManyPatternsError


def pack_fewest(
    items: Sequence[Item], gpu_count: int, caps: ClusterGpuCaps, time_limit: timedelta | None = None
) -> tuple[Packer, Proof]:
    """Pack items, the largest first, as `packing.bin_pack` says; never worse than greedily."""
    check_installed(field="strategy")
    best = min((_greedily(items, gpu_count, caps, strategy) for strategy in GREEDY), key=_worth)
    least = min(best.used, 1) if best.refused else _least(items)
    if best.used == least and not best.refused:
        return best, Proof(optimal=True, bound=least)
    try:
        kinds = _kinds(items, best, caps)
    except TooManyPatternsError:
        return best, Proof(optimal=False, bound=least)
    wholes = _wholes(items, best)
    found = cover([each.sort for each in kinds], wholes, gpu_count, time_limit or TIME_LIMIT)
    if found is None:
        return best, Proof(optimal=False, bound=least)
    packer = _packed(items, kinds, wholes, found, Packer(gpu_count, caps, GREEDY[0]))
    return min(best, packer, key=_worth), Proof(found.optimal, max(found.bound, least))


class _Kinds(NamedTuple):
    """The items of one mechanism by kind, the largest kind first."""

    mechanism: Mechanism
    items: tuple[tuple[Item, ...], ...]
    sort: Sort


def _greedily(items: Sequence[Item], gpu_count: int, caps: ClusterGpuCaps, strategy: str) -> Packer:
    packer = Packer(gpu_count, caps, strategy)
    packer.add_all(items)
    return packer


def _worth(packer: Packer) -> tuple[int, int]:
    """Rank packings: the fewest without a place, then the fewest GPUs."""
    return len(packer.refused), packer.used


def _least(items: Sequence[Item]) -> int:
    """Return how many GPUs are needed by volume alone, when everything is placed."""
    shares: defaultdict[Mechanism, Fraction] = defaultdict(Fraction)
    for item in items:
        shares[item.choice.mechanism] += item.choice.allocated_fraction
    return sum(ceil(share) for share in shares.values())


# -- what one GPU can hold -------------------------------------------------------------------------


def _kind(item: Item) -> Hashable:
    choice = item.choice
    return choice.mig_profile or choice.slots or choice.allocated_fraction


def _kinds(items: Sequence[Item], known: Packer, caps: ClusterGpuCaps) -> list[_Kinds]:
    """Sort the items by mechanism and kind, with the graph of what one GPU can hold of them."""
    by_mechanism: defaultdict[Mechanism, dict[Hashable, list[Item]]] = defaultdict(dict)
    for item in items:
        if item.choice.mechanism is not Mechanism.WHOLE:
            by_mechanism[item.choice.mechanism].setdefault(_kind(item), []).append(item)
    return [
        _Kinds(
            mechanism,
            tuple(map(tuple, kinds.values())),
            Sort(
                _patterns(mechanism, list(kinds), caps),
                tuple(map(len, kinds.values())),
                _known(mechanism, list(kinds), known),
                _least([item for alike in kinds.values() for item in alike]),
            ),
        )
        for mechanism, kinds in by_mechanism.items()
    ]


def _known(mechanism: Mechanism, kinds: Sequence[Hashable], packer: Packer) -> list[Counts]:
    filled = [Counter(map(_kind, gpu.items)) for gpu in packer.bins if gpu.mechanism is mechanism]
    return [tuple(counts[kind] for kind in kinds) for counts in filled]


def _patterns(mechanism: Mechanism, kinds: Sequence[Any], caps: ClusterGpuCaps) -> Patterns[Any]:
    if mechanism is Mechanism.MIG:
        return _instances(kinds, caps)
    return _portions(kinds, caps.slots_per_gpu or caps.shares_per_gpu or 1)


def _instances(names: Sequence[str], caps: ClusterGpuCaps) -> Patterns[frozenset[int]]:
    """Follow every way to place instances at once: where they lie is decided at the end."""
    profiles = {profile.name: profile for profile in caps.offered}

    def take(masks: frozenset[int], kind: int) -> frozenset[int] | None:
        return frozenset(follow(masks, profiles[names[kind]])) or None

    return Patterns(len(names), [frozenset({0})], take)


def _portions(sizes: Sequence[Fraction | int], total: int) -> Patterns[tuple[int, int]]:
    """Count down what is left of a GPU, and of its holders, in units that every size is made of."""
    parts = lcm(*(size.denominator for size in sizes))
    units = [int(size * parts) for size in sizes]
    smallest = min(units)

    def left(free: int, holders: int) -> tuple[int, int]:
        # Holders that no room is left for are not told apart.
        return free, min(holders, free // smallest)

    def take(state: tuple[int, int], kind: int) -> tuple[int, int] | None:
        free, holders = state
        after = free - units[kind]
        return left(after, holders - 1) if after >= 0 and holders else None

    return Patterns(len(units), [left(total * parts, MOST_HOLDERS)], take)


# -- there and back --------------------------------------------------------------------------------


def _wholes(items: Sequence[Item], known: Packer) -> list[Whole]:
    """Count the asks for whole GPUs by how many they ask for."""
    wanted: Counter[int] = Counter()
    placed: Counter[int] = Counter()
    for item in items:
        if item.choice.mechanism is Mechanism.WHOLE:
            size = int(item.choice.allocated_fraction)
            wanted[size] += 1
            placed[size] += item.number not in known.refused
    return [Whole(size, count, placed[size]) for size, count in wanted.items()]


def _packed(
    items: Sequence[Item],
    kinds: Sequence[_Kinds],
    wholes: Sequence[Whole],
    found: Covering,
    packer: Packer,
) -> Packer:
    """Give each GPU the items that were counted for it; what is left over is tried greedily."""
    filled: list[tuple[Mechanism, list[Item]]] = []
    for each, gpus in zip(kinds, found.sorts, strict=True):
        queues = [deque(alike) for alike in each.items]
        for counts in gpus:
            held = [queues[kind].popleft() for kind, n in enumerate(counts) for _ in range(n)]
            filled.append((each.mechanism, held))
    left = Counter(dict(zip((whole.size for whole in wholes), found.wholes, strict=True)))
    for item in items:
        if item.choice.mechanism is Mechanism.WHOLE:
            size = int(item.choice.allocated_fraction)
            if left[size]:
                left[size] -= 1
                filled += [(Mechanism.WHOLE, [item])] * size
    order = {item.number: at for at, item in enumerate(items)}
    filled = sorted(filter(itemgetter(1), filled), key=lambda gpu: order[gpu[1][0].number])
    for gpu, (mechanism, held) in zip(packer.bins, filled, strict=False):
        gpu.mechanism, gpu.items = mechanism, list(held)
    placed = {item.number for _, held in filled for item in held}
    packer.add_all(item for item in items if item.number not in placed)
    return packer
