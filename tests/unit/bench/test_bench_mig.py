"""The MIG harness: its optimum against every way of cutting a GPU, and its rules on one GPU."""

import random
from collections import Counter
from functools import cache
from itertools import combinations

import pytest
from bench.mig import MIXES, _fleet, _poisson
from bench.replay.churn import Arrival, Churn, used
from bench.replay.mig import (
    PLACES,
    PROFILES,
    RULES,
    SIZES,
    Migrating,
    RuleFleet,
    fewest,
    fit_in,
)
from bench.replay.our_mig import OurFleet


def patterns():
    """Return the maximal sets of profiles that one GPU holds, each as counts."""
    found = set()

    def go_on(busy, held):
        larger = [
            (profile, place)
            for profile, places in PLACES.items()
            for place in places
            if not place & busy
        ]
        for profile, place in larger:
            go_on_once(busy | place, tuple(sorted((*held, profile))))
        if not larger:
            found.add(held)

    go_on_once = cache(go_on)
    go_on(0, ())
    counts = {held: Counter(held) for held in found}
    return [c for c in counts.values() if not any(c < other for other in counts.values())]


def test_a_gpu_holds_28_maximal_sets_of_profiles():
    assert len(patterns()) == 28


def test_the_optimum_is_that_of_the_patterns():
    shapes = patterns()
    rng = random.Random(5)
    for _ in range(300):
        pile = Counter(rng.choices(PROFILES, (5, 2, 3, 2, 1, 1), k=rng.randrange(1, 14)))
        two = any(pile <= a + b for a, b in [*combinations(shapes, 2), *((s, s) for s in shapes)])
        one = any(pile <= shape for shape in shapes)
        counts = {profile: pile[profile] for profile in PROFILES}
        assert (fit_in(counts, 1), fit_in(counts, 2)) == (one, two), pile
        assert fewest(counts) == (1 if one else 2) or not two


def test_the_rules_differ_where_they_should():
    low = {"7g.80gb": 0, "3g.40gb": 0, "1g.10gb": 0}
    top = {"7g.80gb": 0, "3g.40gb": 4, "1g.10gb": 6}
    for rule, starts in (("firstfit_low", low), ("hami_ends", top), ("firstfit_high", top)):
        for profile, start in starts.items():
            lease = RuleFleet(RULES[rule], 2).place(profile)
            assert lease is not None
            assert (lease.gpu, (lease.mask & -lease.mask).bit_length() - 1) == (0, start)
    fleets = {rule: RuleFleet(RULES[rule], 2) for rule in ("spread", "bestfit", "fragmentation")}
    gpus = {rule: [fleet.place("1g.20gb").gpu for _ in "ab"] for rule, fleet in fleets.items()}
    assert gpus == {"spread": [0, 1], "bestfit": [0, 0], "fragmentation": [0, 0]}
    # The odd pair at the top is of use to 1g alone: there it costs the others nothing.
    assert fleets["fragmentation"].busy[0] & 0b1100_0000


def test_requests_that_wait_begin_the_oldest_first_and_give_up_in_time():
    arrivals = [
        Arrival(0, "7g.80gb", 10),
        Arrival(1, "4g.40gb", 10, 20),
        Arrival(2, "7g.80gb", 1, 5),
        Arrival(3, "1g.10gb", 5, 20),
        Arrival(4, "1g.10gb", 5),
    ]
    for fleet in (RuleFleet(RULES["bestfit"], 1), OurFleet(1), Migrating(1)):
        starts = Churn(fleet).run(arrivals)
        assert starts == [0, 10, None, 10, None]
    # 8 slices from 0 to 10, then 4 until 20 and 1 until 15.
    assert used(arrivals, starts, SIZES.__getitem__, (5, 20)) == (8 * 5 + 4 * 10 + 5) / 15


@pytest.mark.parametrize("mix", sorted(MIXES))
def test_the_engine_decides_as_equal_weight_fragmentation_does_whatever_the_order(mix):
    arrivals = _poisson(mix, 7)[:1_500]
    ours = Churn(_fleet("ours", 20)).run(arrivals)
    assert ours == Churn(_fleet("fragmentation", 20)).run(arrivals)
    assert None in ours
