"""Asks and capabilities: every form, every refusal."""

from fractions import Fraction

import pytest

from apportion.errors import InvalidInputError
from apportion.planning import ClusterGpuCaps, FractionalAsk, Isolation, parse_ask
from apportion.planning.asks import describe


def test_an_ask_takes_label_and_fraction_by_position():
    ask = FractionalAsk("a", 0.5)
    assert (ask.label, ask.fraction, ask.gpus) == ("a", Fraction(1, 2), None)
    assert ask == FractionalAsk("a", fraction="1/2")
    assert hash(ask) == hash(FractionalAsk("a", "500m"))


def test_an_ask_for_nothing_in_particular_is_one_whole_gpu():
    ask = FractionalAsk("a")
    assert (ask.fraction, ask.gpus) == (1, 1)


def test_whole_gpus_and_a_whole_fraction_are_one_thing():
    assert FractionalAsk("a", 2) == FractionalAsk("a", gpus=2)


def test_memory_is_kept_in_bytes_and_a_profile_in_the_drivers_spelling():
    assert FractionalAsk("a", memory="20Gi").memory == 20 * 2**30
    assert FractionalAsk("a", memory=1024).memory == 1024
    assert FractionalAsk("a", mig_profile="nvidia.com/mig-1G.10GB.me").mig_profile == "1g.10gb+me"


def test_a_named_profile_means_hardware_isolation():
    assert FractionalAsk("a", mig_profile="1g.5gb").isolation is Isolation.HARDWARE
    asked = FractionalAsk("a", mig_profile="1g.5gb", isolation="soft")
    assert asked.isolation is Isolation.HARDWARE
    assert FractionalAsk("a", mig_profile="1g.5gb", isolation="exclusive").isolation == "exclusive"


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"fraction": "0"}, "fraction"),
        ({"fraction": 1.5}, "fraction"),
        ({"fraction": 10_001}, "fraction"),
        ({"mig_profile": "half"}, "mig_profile"),
        ({"mig_profile": "1c.3g.20gb"}, "mig_profile"),
        ({"memory": "20"}, "memory"),
        ({"memory": 0}, "memory"),
        ({"memory": -1}, "memory"),
        ({"slots": 0}, "slots"),
        ({"slots": 49}, "slots"),
        ({"slots": True}, "slots"),
        ({"gpus": 0}, "gpus"),
        ({"gpus": 10_001}, "gpus"),
        ({"isolation": "hard"}, "isolation"),
        ({"fraction": 0.5, "gpus": 1}, "gpus"),
        ({"mig_profile": "1g.5gb", "memory": "5Gi"}, "memory"),
    ],
)
def test_a_bad_part_is_refused_by_name(arguments, field):
    with pytest.raises(InvalidInputError) as caught:
        FractionalAsk("a", **arguments)
    assert caught.value.field == field
    assert caught.value.given is not None
    assert caught.value.allowed


@pytest.mark.parametrize("label", ["", " ", "x" * 201, "a\nb", "\x1b[31m"])
def test_a_label_must_be_printable(label):
    with pytest.raises(InvalidInputError, match="label"):
        FractionalAsk(label)


@pytest.mark.parametrize(
    ("text", "ask"),
    [
        ("a:0.5", FractionalAsk("a", 0.5)),
        ("a:500m", FractionalAsk("a", 0.5)),
        ("ns:job:1/7", FractionalAsk("ns:job", "1/7")),
        ("a:2", FractionalAsk("a", gpus=2)),
        ("a:2g.10gb", FractionalAsk("a", mig_profile="2g.10gb")),
        ("a:20Gi", FractionalAsk("a", memory="20Gi")),
        ("a:20480Mi", FractionalAsk("a", memory="20Gi")),
        ("a:20GB", FractionalAsk("a", memory="20GB")),
        ("a:20M", FractionalAsk("a", memory="20M")),
        ("a:2slots", FractionalAsk("a", slots=2)),
        ("a:1slot", FractionalAsk("a", slots=1)),
    ],
)
def test_an_ask_is_read_from_one_word(text, ask):
    assert parse_ask(text) == ask


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a", "is no ask"),
        ("a:", "is no ask"),
        (":0.5", "is no ask"),
        ("", "is no ask"),
        ("a:half", "not a number of this grammar"),
        ("a:0", "greater than 0"),
        ("a:20gb", "wrong case"),
        ("a:2000mb", "wrong case"),
        ("a:99slots", "out of range"),
        ("a:2g.", "not a MIG profile"),
    ],
)
def test_a_bad_word_is_refused_with_the_reason(text, reason):
    with pytest.raises(InvalidInputError, match=reason) as caught:
        parse_ask(text, field="--ask")
    assert (caught.value.field or "").startswith("--ask")


def test_an_ask_is_described_in_its_own_terms():
    assert describe(FractionalAsk("a", "2/7")) == "2/7"
    assert describe(FractionalAsk("a", mig_profile="2g.10gb")) == "2g.10gb"
    assert describe(FractionalAsk("a", memory="20480Mi")) == "20GiB"
    assert describe(FractionalAsk("a", slots=1)) == "1 slot"
    assert describe(FractionalAsk("a", gpus=2)) == "2 GPUs"


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"slots_per_gpu": 0}, "slots_per_gpu"),
        ({"slots_per_gpu": 49}, "slots_per_gpu"),
        ({"shares_per_gpu": 0}, "shares_per_gpu"),
        ({"memory_mib": 0}, "memory_mib"),
        ({"slots_per_gpu": 4, "shares_per_gpu": 100}, "shares_per_gpu"),
        ({"mig_profiles": ["1g.5gb", "lots"]}, "mig_profiles[1]"),
        ({"mig_profiles": "1g.5gb"}, "mig_profiles"),
    ],
)
def test_bad_capabilities_are_refused_by_name(arguments, field):
    with pytest.raises(InvalidInputError) as caught:
        ClusterGpuCaps(**arguments)
    assert caught.value.field == field


def test_an_offered_profile_must_be_one_of_the_board():
    caps = ClusterGpuCaps(supports_mig=True, mig_profiles=["1g.5gb", "1g.24gb"])
    with pytest.raises(InvalidInputError, match="no such profile") as caught:
        _ = caps.offered
    assert caught.value.field == "mig_profiles[1]"


def test_without_a_list_every_profile_of_the_board_is_on_offer_smallest_first():
    names = [profile.name for profile in ClusterGpuCaps(supports_mig=True).offered]
    assert names == [
        *("1g.5gb", "1g.5gb+me", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")
    ]
    assert ClusterGpuCaps(supports_mig=True, mig_profiles=[]).offered == ()
    assert ClusterGpuCaps().offered == ()


def test_seven_mps_slots_get_fourteen_units_each():
    assert ClusterGpuCaps(supports_mps=True, slots_per_gpu=7).mps_slot_units == 14
    assert ClusterGpuCaps(supports_mps=True, slots_per_gpu=48).mps_slot_units == 2
