"""The exact strategy: the published anchors, what it proves, and what it says when it cannot."""

import random
import sys
from collections import Counter
from datetime import timedelta

import pytest
from bench.replay.mig import PROFILES, fewest

from apportion.errors import InvalidInputError
from apportion.planning import ClusterGpuCaps, FractionalAsk, PackResult, Proof, bin_pack, parse_ask

H100 = ClusterGpuCaps(supports_mig=True, gpu_model="h100-sxm5-80gb")
SHARED = ClusterGpuCaps(supports_timeslice=True)
NO_TIME = timedelta(microseconds=1)


def exact(
    asks: str, gpus: int, caps: ClusterGpuCaps = SHARED, limit: timedelta | None = None
) -> PackResult:
    parsed = [parse_ask(text) for text in asks.split()]
    return bin_pack(parsed, gpus, caps, strategy="exact", time_limit=limit)


# Largest first, the 0.4 sits beside the 0.5 and every GPU after it has a hole.
TRAP = "a:0.5 b:0.4 c:0.3 d:0.3 e:0.3 f:0.2"


@pytest.mark.parametrize("count", [60, 200, 1000])
def test_the_optimum_over_the_28_patterns_is_met(count):
    draw = random.Random(count)
    wanted = draw.choices(PROFILES, k=count)
    asks = [FractionalAsk(name, mig_profile=name) for name in wanted]
    result = bin_pack(asks, 1000, H100, strategy="exact")
    optimum = fewest({name: Counter(wanted)[name] for name in PROFILES})
    assert (result.gpus_used, result.unplaced) == (optimum, ())
    assert result.proof == Proof(optimal=True, bound=optimum)


def test_it_finds_what_largest_first_misses():
    assert bin_pack([parse_ask(a) for a in TRAP.split()], 9, SHARED).gpus_used == 3
    result = exact(TRAP, 9)
    assert result.gpus_used == 2
    assert result.proof == Proof(optimal=True, bound=2)
    assert [[each.label for each in gpu.placed] for gpu in result.gpus[:2]] == [
        ["a", "c", "f"],
        ["b", "d", "e"],
    ]


def test_with_too_few_gpus_the_most_asks_are_placed_and_the_rest_have_reasons():
    greedy = bin_pack([parse_ask(a) for a in ["a:0.9", "b:0.5", "c:0.5"]], 1, SHARED)
    assert [entry.label for entry in greedy.unplaced] == ["b", "c"]
    result = exact("a:0.9 b:0.5 c:0.5", 1)
    assert [(entry.label, entry.code) for entry in result.unplaced] == [("a", "no_room")]
    assert result.proof == Proof(optimal=True, bound=1)


def test_without_time_the_greedy_packing_comes_back_and_nothing_is_claimed():
    result = exact(TRAP, 9, limit=NO_TIME)
    assert result.gpus_used == 3
    assert result.proof == Proof(optimal=False, bound=2)
    assert result.unplaced == ()


def test_sizes_whose_sums_cannot_be_gone_through_are_packed_greedily_and_said_so():
    draw = random.Random(7)
    asks = [FractionalAsk("a", f"{draw.randint(1, 10**6)}/1000003") for _ in range(120)]
    result = bin_pack(asks, 500, SHARED, strategy="exact", time_limit=timedelta(seconds=1))
    best = bin_pack(asks, 500, SHARED, strategy="best")
    assert result.gpus_used == best.gpus_used
    assert result.proof is not None
    assert result.proof.bound <= result.gpus_used


def test_the_same_question_gets_the_same_answer():
    draw = random.Random(3)
    asks = [FractionalAsk("a", f"0.{draw.randint(10, 60)}") for _ in range(60)]
    first, again = (bin_pack(asks, 60, SHARED, strategy="exact") for _ in range(2))
    assert first == again


def test_nothing_to_place_needs_no_gpu():
    result = exact("a:3g.20gb", 2)
    assert [entry.code for entry in result.unplaced] == ["no_mig"]
    assert result.proof == Proof(optimal=True, bound=0)


def test_a_board_whose_placements_nobody_knows_places_nothing_and_says_so():
    caps = ClusterGpuCaps(supports_mig=True, gpu_model="rtx-6000d-84gb")
    name = caps.offered[0].name
    result = exact(f"a:{name} b:1", 2, caps)
    assert [(entry.label, entry.code) for entry in result.unplaced] == [("a", "geometry_unknown")]
    assert result.gpus_used == 1


def test_forty_eight_holders_are_the_most(monkeypatch):
    result = exact(" ".join(["a:1/100"] * 50), 3)
    assert [len(gpu.placed) for gpu in result.gpus] == [48, 2, 0]
    assert result.proof == Proof(optimal=True, bound=2)


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ortools", None)
    with pytest.raises(InvalidInputError, match=r"pip install 'apportion\[exact\]'") as caught:
        exact("a:0.5", 1)
    assert caught.value.field == "strategy"


def test_other_strategies_prove_nothing():
    assert bin_pack([parse_ask("a:0.5")], 1, SHARED).proof is None
