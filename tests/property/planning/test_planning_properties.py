"""Planning under arbitrary asks, judged by a table of placements and a packer of the test's own."""

from fractions import Fraction
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from apportion.planning import (
    ClusterGpuCaps,
    FractionalAsk,
    Isolation,
    Ledger,
    Refusal,
    UsageRecord,
    bin_pack,
    decide,
    fractional_gpu_hours,
)

# An A100-SXM4-40GB: compute slices, and the memory slices of every legal placement.
A100 = {
    "1g.5gb": (1, [{start} for start in range(7)]),
    "1g.10gb": (1, [{start, start + 1} for start in (0, 2, 4, 6)]),
    "2g.10gb": (2, [{start, start + 1} for start in (0, 2, 4)]),
    "3g.20gb": (3, [set(range(4)), set(range(4, 8))]),
    "4g.20gb": (4, [set(range(4))]),
    "7g.40gb": (7, [set(range(8))]),
}

profiles = st.sampled_from(sorted(A100))
fractions = st.fractions(Fraction(1, 50), Fraction(49, 50), max_denominator=50)
capabilities = st.builds(
    ClusterGpuCaps,
    supports_mig=st.booleans(),
    supports_mps=st.booleans(),
    supports_timeslice=st.booleans(),
    mig_profiles=st.none() | st.lists(profiles, max_size=4),
    slots_per_gpu=st.none() | st.integers(1, 48),
)
isolations = st.sampled_from(["soft", "hardware", "exclusive"])
asks = st.one_of(
    st.builds(FractionalAsk, st.just("a"), fractions, isolation=isolations),
    st.builds(
        FractionalAsk,
        st.just("a"),
        mig_profile=profiles,
        isolation=isolations,
        allow_larger=st.booleans(),
    ),
    st.builds(FractionalAsk, st.just("a"), memory=st.integers(1, 50 * 2**30), isolation=isolations),
    st.builds(FractionalAsk, st.just("a"), slots=st.integers(1, 48), isolation=isolations),
    st.builds(FractionalAsk, st.just("a"), gpus=st.integers(1, 3), isolation=isolations),
)
strategies = st.sampled_from(["ffd", "best", "exact"])


def can_live_together(names: list[str]) -> bool:
    """Try every combination of placements: brute force, and none of the code under test."""
    for places in product(*(A100[name][1] for name in names)):
        if sum(map(len, places)) == len(set().union(*places)):
            return True
    return False


@given(asks, capabilities)
def test_a_choice_gives_what_was_asked_and_no_weaker_isolation(ask, caps):
    choice = decide(ask, caps)
    if isinstance(choice, Refusal):
        # Only these forms can be impossible: a fraction and whole GPUs always get an answer.
        assert ask.fraction is None
        return
    assert Isolation(choice.isolation).covers(ask.isolation)
    assert choice.wasted_fraction == max(0, choice.allocated_fraction - choice.requested_fraction)
    floored = choice.mechanism == "mps" and caps.slots_per_gpu is not None
    if not floored and ask.memory is None:
        assert choice.allocated_fraction >= choice.requested_fraction
    if choice.mechanism == "mig":
        assert caps.supports_mig
        assert caps.mig_profiles is None or choice.mig_profile in caps.mig_profiles
    if ask.mig_profile is not None and not ask.allow_larger:
        assert choice.mig_profile == ask.mig_profile


@given(fractions, st.lists(profiles, min_size=1, unique=True))
def test_no_smaller_profile_on_offer_would_have_done(fraction, offered):
    caps = ClusterGpuCaps(supports_mig=True, mig_profiles=offered)
    choice = decide(FractionalAsk("a", fraction), caps)
    enough = [name for name in offered if Fraction(A100[name][0], 7) >= fraction]
    if not enough:
        assert choice.mechanism == "whole"
        return
    smallest = min(A100[name][0] for name in enough)
    assert choice.allocated_fraction == Fraction(smallest, 7)
    slices = {name: len(A100[name][1][0]) for name in enough if A100[name][0] == smallest}
    assert slices[choice.mig_profile] == min(slices.values())


@given(st.lists(profiles, max_size=9), st.integers(1, 3), strategies)
def test_instances_lie_legally_and_one_is_left_out_only_where_none_fits(names, gpus, strategy):
    wanted = [FractionalAsk(str(i), mig_profile=name) for i, name in enumerate(names)]
    result = bin_pack(wanted, gpus, ClusterGpuCaps(supports_mig=True), strategy=strategy)
    placed = [entry.ask for gpu in result.gpus for entry in gpu.placed]
    left = [entry.ask for entry in result.unplaced]
    assert sorted(placed + left) == list(range(len(names)))
    for gpu in result.gpus:
        spans = [set(range(e.start, e.start + e.size)) for e in gpu.placed]
        assert all(
            span in A100[e.mig_profile][1] for span, e in zip(spans, gpu.placed, strict=True)
        )
        assert sum(map(len, spans)) == len(set().union(*spans))
        assert all(e.mig_profile == names[e.ask] for e in gpu.placed)
        assert gpu.free_share >= 0
        here = [e.mig_profile for e in gpu.placed]
        assert not any(can_live_together([*here, names[ask]]) for ask in left)


@given(st.lists(fractions, max_size=30), st.integers(1, 4))
def test_first_fit_decreasing_is_what_it_says(shares, gpus):
    wanted = [FractionalAsk("same", share) for share in shares]
    result = bin_pack(wanted, gpus, ClusterGpuCaps(supports_timeslice=True))
    free, where = [Fraction(1)] * gpus, {}
    for ask in sorted(range(len(shares)), key=lambda i: -shares[i]):
        gpu = next((g for g in range(gpus) if free[g] >= shares[ask]), None)
        if gpu is not None:
            free[gpu] -= shares[ask]
            where[ask] = gpu
    assert {e.ask: gpu.index for gpu in result.gpus for e in gpu.placed} == where
    assert [gpu.free_share for gpu in result.gpus] == free
    assert [entry.ask for entry in result.unplaced] == [
        ask for ask in range(len(shares)) if ask not in where
    ]


@given(st.lists(asks, max_size=12), capabilities, st.integers(1, 4), strategies)
def test_any_packing_keeps_every_ask_once_and_no_gpu_over_full_or_mixed(
    wanted, caps, gpus, strategy
):
    result = bin_pack(wanted, gpus, caps, strategy=strategy)
    left = [entry.ask for entry in result.unplaced]
    assert left == sorted(left)
    assert all(entry.code and entry.reason for entry in result.unplaced)
    for ask in range(len(wanted)):
        held = sum(e.ask == ask for gpu in result.gpus for e in gpu.placed)
        choice = result.choices[ask]
        if ask in left:
            assert held == 0
        elif choice.mechanism == "whole":
            assert held == choice.allocated_fraction
        else:
            assert held == 1
    for gpu in result.gpus:
        assert gpu.free_share >= 0
        assert (gpu.mechanism is None) == (not gpu.placed)
        assert {result.choices[e.ask].mechanism for e in gpu.placed} <= {gpu.mechanism}
        taken = [set(range(e.start, e.start + e.size)) for e in gpu.placed if e.start is not None]
        assert sum(map(len, taken)) == len(set().union(*taken))
    assert bin_pack(wanted, gpus, caps, strategy=strategy) == result


records = st.builds(
    UsageRecord,
    job_id=st.text("ab", min_size=1, max_size=3),
    attempt=st.integers(1, 2),
    label=st.just("a"),
    mechanism=st.sampled_from(["mig", "whole"]).map(
        lambda name: (
            decide(FractionalAsk("a", "1/7"), ClusterGpuCaps(supports_mig=name == "mig")).mechanism
        )
    ),
    requested=fractions,
    allocated=fractions,
    seconds=st.fractions(0, 10**6, max_denominator=1000),
)


@given(st.lists(records, unique_by=lambda record: record.key), st.data())
def test_hours_add_up_whatever_the_order_and_however_often_they_are_sent(wanted, data):
    sent = data.draw(st.permutations(wanted + wanted))
    ledger = Ledger.of(sent)
    assert ledger.gpu_hours == sum(
        fractional_gpu_hours(record.allocated, record.seconds) for record in wanted
    )
    assert 0 <= ledger.wasted_hours <= ledger.gpu_hours
