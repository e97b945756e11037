"""Packing: the documents' examples, real geometry, and a reason for each that does not fit."""

from fractions import Fraction

import pytest

from apportion.errors import InvalidInputError
from apportion.planning import ClusterGpuCaps, FractionalAsk, PackResult, bin_pack, parse_ask

MIG = ClusterGpuCaps(supports_mig=True)
TIMESLICE = ClusterGpuCaps(supports_timeslice=True)


def pack(
    asks: str, gpus: int, caps: ClusterGpuCaps = TIMESLICE, strategy: str = "ffd"
) -> PackResult:
    return bin_pack([parse_ask(text) for text in asks.split()], gpus, caps, strategy=strategy)


def labels(result: PackResult) -> list[list[str]]:
    return [[placed.label for placed in gpu.placed] for gpu in result.gpus]


def reasons(result: PackResult) -> list[tuple[str, str]]:
    return [(entry.label, entry.code) for entry in result.unplaced]


def test_the_documents_example_packs_largest_first_onto_two_gpus():
    result = pack("a:0.5 b:0.3 c:0.4", 2)
    assert labels(result) == [["a", "c"], ["b"]]
    assert result.gpus_used == 2
    assert result.unplaced == ()
    assert result.gpus[0].free_share == Fraction(1, 10)


def test_the_documents_call_by_keyword_works():
    caps = ClusterGpuCaps(supports_mig=True, mig_profiles=["1g.5gb", "2g.10gb"])
    result = bin_pack([FractionalAsk("a", 0.5), FractionalAsk("b", 0.4)], gpu_count=1, caps=caps)
    # Neither fits a profile on offer, so each wants a whole GPU and there is one.
    assert result.gpus_used == 1
    assert reasons(result) == [("b", "no_unsplit_gpu")]
    assert "rounded 0.4 up to a whole GPU" in result.unplaced[0].reason


def test_two_that_do_not_fit_together_leave_the_second_with_its_reason():
    result = pack("a:0.8 b:0.8", 1)
    assert labels(result) == [["a"]]
    assert reasons(result) == [("b", "no_room")]
    assert result.unplaced[0].reason == (
        "0.8 of a GPU does not fit: no GPU has more than 0.2 free, short by 0.6"
    )


@pytest.mark.parametrize(
    ("asks", "free", "largest"),
    [
        ("a:3g.20gb", "4/7", "4g.20gb"),
        ("a:1g.5gb b:1g.5gb c:1g.5gb", "4/7", "4g.20gb"),
        ("a:4g.20gb b:1g.5gb", "2/7", "2g.10gb"),
        ("a:3g.20gb b:3g.20gb", "0", None),
        (" ".join(["a:1g.5gb"] * 6), "1/7", "1g.10gb"),
    ],
)
def test_beside_what_is_free_stands_the_largest_instance_that_fits(asks, free, largest):
    [gpu] = pack(asks, 1, MIG).gpus
    assert (gpu.free_share, gpu.largest_profile) == (Fraction(free), largest)
    if largest is not None:
        assert not pack(f"{asks} z:{largest}", 1, MIG).unplaced


def test_of_what_is_shared_by_count_all_that_is_free_can_be_had():
    [gpu] = pack("a:0.8", 1).gpus
    assert (gpu.free_share, gpu.largest_profile) == (Fraction(1, 5), None)
    assert not pack("a:0.8 b:0.2", 1).unplaced


def test_ten_tenths_fill_a_gpu_and_the_eleventh_is_refused():
    result = pack(" ".join(["a:0.1"] * 11), 1)
    assert result.gpus[0].free_share == 0
    assert len(result.gpus[0].placed) == 10
    assert reasons(result) == [("a", "no_room")]


def test_thirds_and_sevenths_fill_exactly_and_their_roundings_do_not():
    assert pack("a:1/3 b:1/3 c:1/3", 1).unplaced == ()
    assert pack(" ".join(["a:1/7"] * 7), 1).unplaced == ()
    assert pack("a:0.3333 b:0.3333 c:0.3333", 1).gpus[0].free_share == Fraction(1, 10000)
    assert "short by 0.0002" in pack("a:0.3334 b:0.3334 c:0.3334", 1).unplaced[0].reason
    assert "short by 0.0003" in pack(" ".join(["a:0.1429"] * 7), 1).unplaced[0].reason


def test_two_asks_with_one_label_stay_two():
    result = pack("a:0.8 a:0.7 a:0.2", 1)
    assert [placed.ask for placed in result.gpus[0].placed] == [0, 2]
    assert [(entry.ask, entry.label) for entry in result.unplaced] == [(1, "a")]


def test_sevenths_that_sum_to_one_are_refused_where_they_cannot_lie():
    result = pack("a:3g.20gb b:3g.20gb c:1g.5gb", 1, MIG)
    assert [(p.start, p.size) for p in result.gpus[0].placed] == [(0, 4), (4, 4)]
    assert reasons(result) == [("c", "no_placement")]
    assert "9 memory slices are needed" in result.unplaced[0].reason
    assert result.gpus[0].stranded_share == Fraction(1, 7)
    assert result.gpus[0].free_share == 0


def test_instances_are_placed_so_that_all_of_a_legal_set_fit():
    result = pack("a:1g.5gb b:1g.5gb c:1g.5gb d:4g.20gb", 1, MIG)
    assert result.unplaced == ()
    starts = {placed.mig_profile: placed.start for placed in result.gpus[0].placed}
    assert starts["4g.20gb"] == 0  # the only place of a 4g


@pytest.mark.parametrize(("profile", "most"), [("1g.5gb", 7), ("1g.10gb", 4), ("1g.5gb+me", 1)])
def test_a_board_holds_so_many_of_a_profile_and_no_more(profile, most):
    result = pack(" ".join([f"a:{profile}"] * (most + 1)), 1, MIG)
    assert len(result.gpus[0].placed) == most
    assert reasons(result) == [("a", "no_placement")]


def test_mechanisms_never_mix_on_one_gpu():
    caps = ClusterGpuCaps(supports_mig=True, mig_profiles=["1g.5gb"], supports_timeslice=True)
    result = pack("a:0.5 b:1/7", 1, caps)
    assert labels(result) == [["a"]]
    assert reasons(result) == [("b", "mechanisms_never_mix")]
    result = pack("a:0.5 b:1/7", 2, caps)
    assert [gpu.mechanism for gpu in result.gpus] == ["timeslice", "mig"]


def test_whole_gpus_come_all_or_not_at_all():
    result = pack("a:2 b:2", 3)
    assert labels(result) == [["a"], ["a"], []]
    assert reasons(result) == [("b", "no_unsplit_gpu")]
    assert "needs 2 GPUs with nothing on them, and 1 of 3 is left" in result.unplaced[0].reason


def test_fixed_slots_have_places():
    caps = ClusterGpuCaps(supports_mps=True, slots_per_gpu=7)
    result = pack("a:4slots b:2slots c:2slots", 1, caps)
    assert [(p.label, p.start, p.size) for p in result.gpus[0].placed] == [("a", 0, 4), ("b", 4, 2)]
    assert result.gpus[0].stranded_share == Fraction(2, 100)
    assert result.gpus[0].free_share == Fraction(14, 100)
    assert result.unplaced[0].reason == "needs 2 slots, and no GPU has more than 1 of 7 free"


def test_forty_eight_hold_a_gpu_at_most():
    result = pack(" ".join(["a:0.001"] * 49), 1)
    assert len(result.gpus[0].placed) == 48
    assert reasons(result) == [("a", "no_seat")]


def test_best_takes_the_gpu_that_is_left_with_the_least():
    caps = ClusterGpuCaps(supports_timeslice=True, slots_per_gpu=10)
    asks = "a:7slots b:4slots c:4slots d:1slots e:1slots f:1slots"
    # After a | b c, 3 slots are free on GPU 0 and 2 on GPU 1.
    assert labels(pack(asks, 2, caps)) == [["a", "d", "e", "f"], ["b", "c"]]
    assert labels(pack(asks, 2, caps, "best")) == [["a", "f"], ["b", "c", "d", "e"]]


def test_what_is_refused_outright_is_unplaced_with_that_reason():
    result = pack("a:2g.20gb b:0.5", 1, MIG)
    assert reasons(result) == [("a", "no_such_profile")]
    assert labels(result) == [["b"]]


def test_on_a_board_of_unknown_geometry_nothing_is_placed():
    caps = ClusterGpuCaps(supports_mig=True, gpu_model="rtx-6000d-84gb")
    result = pack("a:0.5 b:1", 2, caps)
    assert reasons(result) == [("a", "geometry_unknown")]
    assert labels(result) == [["b"], []]


@pytest.mark.parametrize(
    ("gpus", "strategy", "field"),
    [
        (0, "ffd", "gpu_count"),
        (-1, "ffd", "gpu_count"),
        (10_001, "ffd", "gpu_count"),
        (True, "ffd", "gpu_count"),
        (1, "worst", "strategy"),
    ],
)
def test_a_bad_count_or_strategy_is_refused_by_name(gpus, strategy, field):
    with pytest.raises(InvalidInputError) as caught:
        pack("a:0.5", gpus, strategy=strategy)
    assert caught.value.field == field
