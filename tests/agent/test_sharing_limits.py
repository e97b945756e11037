"""What a share of a GPU comes to in MPS's units, and what its holder is handed."""

from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.agent.sharing.environment import pipe_directory, slot_environment
from apportion.agent.sharing.limits import Limits, limits_of
from apportion.errors import InvalidInputError

H100 = 81559
UUID = "GPU-5f3a0c1e-2222-4b1c-9d6e-0123456789ab"


@given(slots=st.integers(1, 48), memory=st.integers(1024, 400_000))
def test_the_slots_of_a_gpu_never_come_to_more_than_the_gpu(slots, memory):
    each = limits_of(Fraction(100 // slots, 100), memory)
    assert each.percentage == 100 // slots
    assert each.percentage * slots <= 100
    assert each.memory_mib * slots <= memory


@given(
    parts=st.lists(st.integers(1, 100), min_size=1, max_size=48).filter(lambda p: sum(p) <= 100),
    memory=st.integers(1024, 400_000),
)
def test_free_shares_are_whole_percents_and_less_than_a_mib_each_is_lost_of_memory(parts, memory):
    given_out = [limits_of(Fraction(part, 100), memory) for part in parts]
    assert [one.percentage for one in given_out] == parts
    for part, one in zip(parts, given_out, strict=True):
        assert part * memory - 100 < one.memory_mib * 100 <= part * memory


@given(share=st.fractions(Fraction(1, 100), 1), memory=st.integers(1024, 400_000))
def test_a_limit_is_the_largest_whole_number_within_the_share(share, memory):
    limits = limits_of(share, memory)
    assert Fraction(limits.percentage, 100) <= share < Fraction(limits.percentage + 1, 100)
    assert Fraction(limits.memory_mib, memory) <= share < Fraction(limits.memory_mib + 1, memory)


def test_a_seventh_is_rounded_down_and_a_whole_gpu_is_whole():
    assert limits_of(Fraction(1, 7), H100) == Limits(14, 11651)
    assert limits_of(Fraction(1), H100) == Limits(100, H100)


@pytest.mark.parametrize("share", [Fraction(0), Fraction(-1, 4), Fraction(5, 4), Fraction(1, 101)])
def test_a_share_that_mps_cannot_hold_is_refused_and_never_read_as_no_limit(share):
    with pytest.raises(InvalidInputError) as refused:
        limits_of(share, H100)
    assert refused.value.field == "share"


def test_a_holder_is_handed_its_own_daemon_and_limits_by_uuid():
    state = Path("/var/lib/apportion")
    environment = slot_environment(
        state=state, gpu_uuid=UUID, memory_mib=H100, share=Fraction(1, 4)
    )
    assert environment == {
        "CUDA_MPS_PIPE_DIRECTORY": "/var/lib/apportion/mps/5f3a0c1e22224b1c/pipe",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{UUID}=20389M",
    }
    assert str(pipe_directory(state, UUID)) == environment["CUDA_MPS_PIPE_DIRECTORY"]
