"""Which mechanism meets which ask: the documents' examples, and older planners' traps."""

from fractions import Fraction

import pytest

from apportion.errors import InvalidInputError, InvalidStateError
from apportion.planning import (
    ClusterGpuCaps,
    FractionalAsk,
    MechanismChoice,
    Refusal,
    decide,
    select_mechanism,
)

MIG = ClusterGpuCaps(supports_mig=True)
EVERYTHING = ClusterGpuCaps(supports_mig=True, supports_mps=True, supports_timeslice=True)
TIMESLICE = ClusterGpuCaps(supports_timeslice=True)
MPS = ClusterGpuCaps(supports_mps=True)


def refusal(ask: FractionalAsk, caps: ClusterGpuCaps) -> Refusal:
    answer = decide(ask, caps)
    assert isinstance(answer, Refusal)
    return answer


def outcome(choice: MechanismChoice) -> tuple[str, str | None, Fraction, Fraction]:
    return (
        choice.mechanism,
        choice.mig_profile,
        choice.allocated_fraction,
        choice.wasted_fraction,
    )


def test_the_documents_example_gets_the_smallest_profile_that_is_large_enough():
    caps = ClusterGpuCaps(supports_mig=True, mig_profiles=["1g.5gb", "2g.10gb"])
    choice = select_mechanism(FractionalAsk("JPCP", fraction=0.2), caps)
    assert (choice.mechanism, choice.isolation) == ("mig", "hardware")
    assert f"{choice.mechanism} {choice.isolation}" == "mig hardware"
    assert outcome(choice) == ("mig", "2g.10gb", Fraction(2, 7), Fraction(3, 35))


def test_without_any_mechanism_a_quarter_is_a_whole_gpu_and_says_so():
    choice = select_mechanism(FractionalAsk("JPCP", 0.25), ClusterGpuCaps())
    assert outcome(choice) == ("whole", None, 1, Fraction(3, 4))
    assert choice.isolation == "exclusive"
    assert choice.is_fallback
    assert choice.note == ("no fractional support — rounded 0.25 up to a whole GPU (75% wasted)")


@pytest.mark.parametrize(
    ("fraction", "profile"),
    [
        ("1/7", "1g.5gb"),
        ("0.142857", "1g.5gb"),
        ("0.1429", "2g.10gb"),
        ("2/7", "2g.10gb"),
        ("3/7", "3g.20gb"),
        ("0.5", "4g.20gb"),
        ("4/7", "4g.20gb"),
        ("0.6", "7g.40gb"),
    ],
)
def test_a_fraction_asks_for_compute_exactly(fraction, profile):
    choice = select_mechanism(FractionalAsk("a", fraction), MIG)
    assert choice.mig_profile == profile
    assert choice.wasted_fraction == choice.allocated_fraction - choice.requested_fraction >= 0


def test_a_share_is_over_the_models_own_slices():
    a30 = ClusterGpuCaps(supports_mig=True, gpu_model="A30")
    choice = select_mechanism(FractionalAsk("a", 0.5), a30)
    assert outcome(choice) == ("mig", "2g.12gb", Fraction(1, 2), 0)


def test_the_strongest_mechanism_is_tried_first():
    ask = FractionalAsk("a", 0.25)
    assert select_mechanism(ask, EVERYTHING).mechanism == "mig"
    soft = ClusterGpuCaps(supports_mps=True, supports_timeslice=True)
    assert select_mechanism(ask, soft).mechanism == "mps"
    assert select_mechanism(ask, TIMESLICE).mechanism == "timeslice"


def test_what_no_profile_covers_falls_to_the_next_mechanism():
    caps = ClusterGpuCaps(
        supports_mig=True, mig_profiles=["1g.5gb", "2g.10gb"], supports_timeslice=True
    )
    choice = select_mechanism(FractionalAsk("a", 0.5), caps)
    assert outcome(choice) == ("timeslice", None, Fraction(1, 2), 0)


def test_fallback_never_crosses_the_least_isolation():
    hardware = FractionalAsk("a", 0.5, isolation="hardware")
    small = ClusterGpuCaps(
        supports_mig=True, mig_profiles=["1g.5gb"], supports_mps=True, supports_timeslice=True
    )
    choice = select_mechanism(hardware, small)
    assert choice.mechanism == "whole"
    assert "no MIG profile on offer has 0.5 of the compute" in choice.note
    assert "hardware isolation" in choice.note
    assert select_mechanism(hardware, TIMESLICE).mechanism == "whole"
    exclusive = FractionalAsk("a", 0.5, isolation="exclusive")
    assert select_mechanism(exclusive, EVERYTHING).mechanism == "whole"


def test_whole_gpus_are_never_split_and_waste_nothing():
    for caps in (ClusterGpuCaps(), EVERYTHING):
        choice = select_mechanism(FractionalAsk("a", gpus=3), caps)
        assert outcome(choice) == ("whole", None, 3, 0)
        assert not choice.is_fallback


def test_a_named_profile_is_given_exactly_the_full_one_too():
    for name, share in (("2g.10gb", Fraction(2, 7)), ("7g.40gb", Fraction(1)), ("1g.5gb+me", None)):
        choice = select_mechanism(FractionalAsk("a", mig_profile=name), MIG)
        assert (choice.mechanism, choice.mig_profile, choice.wasted_fraction) == ("mig", name, 0)
        assert share is None or choice.allocated_fraction == share


@pytest.mark.parametrize(
    ("profile", "caps", "code", "words"),
    [
        ("2g.20gb", MIG, "no_such_profile", "NVIDIA A100-SXM4-40GB has no profile 2g.20gb"),
        ("10000g.500000gb", MIG, "no_such_profile", "on offer: 1g.5gb, 1g.5gb+me"),
        ("1g.5gb-me", MIG, "no_such_profile", "no profile 1g.5gb-me"),
        (
            "1g.10gb",
            ClusterGpuCaps(supports_mig=True, mig_profiles=["1g.5gb", "2g.10gb"]),
            "profile_not_offered",
            "on offer: 1g.5gb, 2g.10gb",
        ),
        ("2g.10gb", TIMESLICE, "no_mig", "not split by MIG"),
    ],
)
def test_a_profile_that_is_not_to_be_had_is_refused_and_never_swapped(profile, caps, code, words):
    answer = refusal(FractionalAsk("a", mig_profile=profile), caps)
    assert answer.code == code
    assert words in answer.sentence


def test_a_larger_profile_comes_only_when_it_is_allowed():
    caps = ClusterGpuCaps(supports_mig=True, mig_profiles=["1g.5gb", "2g.10gb", "3g.20gb"])
    ask = FractionalAsk("a", mig_profile="1g.10gb", allow_larger=True)
    choice = select_mechanism(ask, caps)
    # 2g.10gb has the compute and the memory; the waste is over what was named.
    assert outcome(choice) == ("mig", "2g.10gb", Fraction(2, 7), Fraction(1, 7))
    none = FractionalAsk("a", mig_profile="4g.20gb", allow_larger=True)
    assert outcome(select_mechanism(none, caps)) == ("whole", None, 1, Fraction(3, 7))
    bigger_than_the_board = FractionalAsk("a", mig_profile="8g.80gb", allow_larger=True)
    assert refusal(bigger_than_the_board, caps).code == "no_such_profile"
    with_media = FractionalAsk("a", mig_profile="1g.5gb+me", allow_larger=True)
    assert select_mechanism(with_media, caps).mechanism == "whole"  # no other has the engines


def test_exclusive_isolation_and_a_profile_contradict():
    ask = FractionalAsk("a", mig_profile="1g.5gb", isolation="exclusive")
    assert refusal(ask, MIG).code == "isolation_not_available"
    allowed = FractionalAsk("a", mig_profile="1g.5gb", isolation="exclusive", allow_larger=True)
    assert select_mechanism(allowed, MIG).mechanism == "whole"


def test_a_refusal_is_an_error_that_carries_its_code():
    with pytest.raises(InvalidStateError, match="not split by MIG") as caught:
        select_mechanism(FractionalAsk("JPCP", mig_profile="1g.5gb"), ClusterGpuCaps())
    assert caught.value.details == {"reason": "no_mig", "label": "JPCP"}


@pytest.mark.parametrize(
    ("memory", "profile"),
    [("4GiB", "1g.5gb"), ("4864Mi", "1g.5gb"), ("4865Mi", "1g.10gb"), ("20Gi", "7g.40gb")],
)
def test_memory_is_what_the_instance_has_and_not_what_its_label_says(memory, profile):
    assert select_mechanism(FractionalAsk("a", memory=memory), MIG).mig_profile == profile


def test_memory_beyond_one_gpu_is_refused():
    answer = refusal(FractionalAsk("a", memory="41Gi"), MIG)
    assert (answer.code, answer.sentence) == (
        "too_large",
        "41GiB is more than the 40GiB of one GPU",
    )


def test_memory_of_a_board_without_figures_falls_to_the_next_mechanism():
    caps = ClusterGpuCaps(supports_mig=True, gpu_model="h800-80gb")
    choice = select_mechanism(FractionalAsk("a", memory="5Gi"), caps)
    assert choice.mechanism == "whole"


def test_memory_on_a_board_that_has_none_of_its_own_is_refused():
    caps = ClusterGpuCaps(supports_mig=True, gpu_model="thor-igpu")
    assert refusal(FractionalAsk("a", memory="5Gi"), caps).code == "memory_unknown"


def test_memory_on_shared_gpus_is_their_part_of_the_memory():
    choice = select_mechanism(FractionalAsk("a", memory="10Gi"), TIMESLICE)
    assert outcome(choice) == ("timeslice", None, Fraction(1, 4), 0)
    reported = ClusterGpuCaps(supports_timeslice=True, gpu_model="Tesla T4", memory_mib=16384)
    assert select_mechanism(FractionalAsk("a", memory="4Gi"), reported).allocated_fraction == (
        Fraction(1, 4)
    )


@pytest.mark.parametrize(
    ("fraction", "slots", "share"),
    [("0.25", 1, "1/4"), ("0.3", 2, "1/2"), ("0.0000001", 1, "1/4"), ("0.99", 4, "1")],
)
def test_a_fraction_of_fixed_slots_is_rounded_up_to_slots(fraction, slots, share):
    caps = ClusterGpuCaps(supports_timeslice=True, slots_per_gpu=4)
    choice = select_mechanism(FractionalAsk("a", fraction), caps)
    assert (choice.slots, choice.allocated_fraction) == (slots, Fraction(share))
    assert choice.wasted_fraction == Fraction(share) - choice.requested_fraction


def test_mps_slots_are_floor_of_a_hundredth_and_the_rest_is_shown():
    caps = ClusterGpuCaps(supports_mps=True, slots_per_gpu=7)
    choice = select_mechanism(FractionalAsk("a", slots=2), caps)
    assert (choice.allocated_fraction, choice.wasted_fraction) == (Fraction(28, 100), 0)
    assert "2 of 7 slots of 14 MPS units each, 2 of each GPU's 100 stranded" in choice.note
    less = select_mechanism(FractionalAsk("a", "2/7"), caps)
    assert less.wasted_fraction == 0
    assert "0.28 where 2/7 was asked" in less.note


def test_free_shares_are_hundredths_where_the_pool_has_hundredths():
    caps = ClusterGpuCaps(supports_timeslice=True, shares_per_gpu=100)
    choice = select_mechanism(FractionalAsk("a", "0.81"), caps)
    assert (choice.slots, choice.allocated_fraction) == (81, Fraction(81, 100))
    third = select_mechanism(FractionalAsk("a", "1/3"), caps)
    assert (third.slots, third.wasted_fraction) == (34, Fraction(34, 100) - Fraction(1, 3))


@pytest.mark.parametrize(
    ("ask", "caps", "code"),
    [
        (FractionalAsk("a", slots=1), TIMESLICE, "no_slots"),
        (FractionalAsk("a", slots=1), ClusterGpuCaps(slots_per_gpu=4), "no_slots"),
        (
            FractionalAsk("a", slots=5),
            ClusterGpuCaps(supports_mps=True, slots_per_gpu=4),
            "too_large",
        ),
        (
            FractionalAsk("a", slots=1, isolation="hardware"),
            ClusterGpuCaps(supports_mps=True, slots_per_gpu=4),
            "isolation_not_available",
        ),
    ],
)
def test_slots_that_are_not_to_be_had_are_refused(ask, caps, code):
    assert refusal(ask, caps).code == code


def test_an_unknown_or_ambiguous_model_is_never_guessed():
    for model in ("NVIDIA FooBar 9000", "h100"):
        caps = ClusterGpuCaps(supports_mig=True, gpu_model=model)
        with pytest.raises(InvalidInputError) as caught:
            select_mechanism(FractionalAsk("a", 0.5), caps)
        assert caught.value.field == "gpu_model"


def test_a_model_without_mig_needs_no_board_when_nothing_asks_for_one():
    caps = ClusterGpuCaps(supports_timeslice=True, gpu_model="Tesla T4")
    assert select_mechanism(FractionalAsk("a", 0.5), caps).mechanism == "timeslice"
