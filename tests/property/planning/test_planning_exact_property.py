"""The exact strategy, judged by trying every way to share out a few asks."""

from collections.abc import Sequence
from datetime import timedelta
from fractions import Fraction
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from apportion.planning import ClusterGpuCaps, FractionalAsk, PackResult, bin_pack

# An A100-SXM4-40GB: the memory slices of every legal placement.
A100 = {
    "1g.5gb": [0b1 << start for start in range(7)],
    "1g.10gb": [0b11 << start for start in (0, 2, 4, 6)],
    "2g.10gb": [0b11 << start for start in (0, 2, 4)],
    "3g.20gb": [0b1111, 0b11110000],
    "4g.20gb": [0b1111],
    "7g.40gb": [0b11111111],
}
MIG = ClusterGpuCaps(supports_mig=True, mig_profiles=list(A100), supports_timeslice=True)
SLOTS = ClusterGpuCaps(supports_mps=True, slots_per_gpu=10)
SHARED = ClusterGpuCaps(supports_timeslice=True)

Wish = str | int | Fraction
"""A MIG profile, a number of whole GPUs, or a part of one."""

parts = st.fractions(Fraction(1, 12), Fraction(11, 12), max_denominator=12)
wholes = st.integers(1, 2)
mixed = st.lists(st.sampled_from(sorted(A100)) | wholes, min_size=1, max_size=7)
shared = st.lists(parts | wholes, min_size=1, max_size=7)


def held(wish: Wish) -> str:
    return "mig" if isinstance(wish, str) else "part"


def can_share(wishes: Sequence[str | Fraction]) -> bool:
    if isinstance(wishes[0], Fraction):
        return sum(wish for wish in wishes if isinstance(wish, Fraction)) <= 1
    places = product(*(A100[wish] for wish in wishes if isinstance(wish, str)))
    return any(sum(masks).bit_count() == sum(map(int.bit_count, masks)) for masks in places)


def best(wishes: Sequence[Wish], gpus: int) -> tuple[int, int]:
    """Return (most placed, fewest GPUs for so many): every partition is tried."""
    found = (0, 0)

    def go(at: int, bins: list[list[str | Fraction]], whole: int, placed: int) -> None:
        nonlocal found
        if len(bins) + whole > gpus:
            return
        if at == len(wishes):
            found = max(found, (placed, -len(bins) - whole))
            return
        wish = wishes[at]
        go(at + 1, bins, whole, placed)
        if isinstance(wish, int):
            go(at + 1, bins, whole + wish, placed + 1)
            return
        for held in bins:
            if can_share([*held, wish]):
                held.append(wish)
                go(at + 1, bins, whole, placed + 1)
                held.pop()
        go(at + 1, [*bins, [wish]], whole, placed + 1)

    go(0, [], 0, 0)
    return found[0], -found[1]


def pack(
    wishes: Sequence[Wish], gpus: int, caps: ClusterGpuCaps, limit: timedelta | None = None
) -> PackResult:
    asks = [
        FractionalAsk("a", mig_profile=wish)
        if isinstance(wish, str)
        else FractionalAsk("a", gpus=wish)
        if isinstance(wish, int)
        else FractionalAsk("a", wish)
        for wish in wishes
    ]
    return bin_pack(asks, gpus, caps, strategy="exact", time_limit=limit)


def assert_the_best(result: PackResult, wishes: Sequence[Wish], gpus: int) -> None:
    placed, fewest = best(wishes, gpus)
    assert (len(wishes) - len(result.unplaced), result.gpus_used) == (placed, fewest)
    assert result.proof == (True, fewest)


@settings(max_examples=150)
@given(mixed, st.integers(1, 5))
def test_no_way_to_place_instances_and_whole_gpus_is_better(wishes, gpus):
    assert_the_best(pack(wishes, gpus, MIG), wishes, gpus)


@settings(max_examples=150)
@given(shared, st.integers(1, 5))
def test_no_way_to_place_fractions_and_whole_gpus_is_better(wishes, gpus):
    assert_the_best(pack(wishes, gpus, SHARED), wishes, gpus)


@given(st.lists(st.integers(1, 10), min_size=1, max_size=7), st.integers(1, 5))
def test_no_way_to_place_slots_is_better(slots, gpus):
    asks = [FractionalAsk("a", slots=count) for count in slots]
    result = bin_pack(asks, gpus, SLOTS, strategy="exact")
    assert_the_best(result, [Fraction(count, 10) for count in slots], gpus)


@given(st.lists(parts, min_size=1, max_size=7), st.integers(1, 5))
def test_a_search_without_time_claims_nothing_that_is_false(wishes, gpus):
    result = pack(wishes, gpus, SHARED, timedelta(microseconds=1))
    placed, fewest = best(wishes, gpus)
    assert result.proof is not None
    assert result.proof.bound <= result.gpus_used
    if result.proof.optimal:
        assert (len(wishes) - len(result.unplaced), result.gpus_used) == (placed, fewest)
    for strategy in ("ffd", "best"):
        greedy = bin_pack(
            [FractionalAsk("a", wish) for wish in wishes], gpus, SHARED, strategy=strategy
        )
        assert (len(result.unplaced), result.gpus_used) <= (len(greedy.unplaced), greedy.gpus_used)
