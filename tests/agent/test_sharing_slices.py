"""Time slices: set where the driver can, told where it cannot, and given back as found."""

import pytest
from sharing_world import FOUR, SLICES, until, world
from test_sharing_kills import killed_at, points_of

SHORT = {**SLICES, "time_slice": "short"}
LONG = {**SLICES, "time_slice": "long"}


@pytest.fixture
def node():
    with world() as made:
        yield made


def length(node):
    return node.machine.read().gpus[0].time_slice


def test_slots_without_a_length_need_no_more_than_a_gpu_that_takes_many(node):
    node.change(compute_mode=3, time_slice=2)
    shared = node.converge(SLICES)
    assert shared.done
    assert shared.message.startswith("soft: time slices")
    assert (node.driver.compute_mode(node.gpu), length(node)) == ("default", 2)
    assert node.converge(None).done
    assert (node.driver.compute_mode(node.gpu), length(node)) == ("exclusive_process", 2)


def test_a_length_is_set_changed_and_given_back_as_it_was_found(node):
    node.change(time_slice=2)
    assert node.converge(SHORT).done
    assert length(node) == 1
    assert node.converge(LONG).done
    assert length(node) == 3
    assert node.converge(SLICES).done
    assert length(node) == 2
    assert node.converge(SHORT).done
    assert node.converge(None).done
    assert length(node) == 2
    assert not node.journal().gpus()


def test_a_length_that_somebody_else_has_set_since_is_left_to_them_at_the_end(node):
    node.converge(SHORT)
    node.change(time_slice=3)
    assert node.converge(None).done
    assert length(node) == 3


def test_a_driver_that_cannot_set_it_is_quoted_and_the_gpu_shared_all_the_same(node):
    node.machine.fail("nvidia-smi --set-timeslice", 3, times=0)
    shared = node.converge(SHORT)
    assert shared.done
    assert "does not set the time slice" in shared.message
    assert "Not Supported" in shared.message
    assert length(node) == 0
    assert node.converge(None).done


def test_a_node_without_nvidia_smi_shares_all_the_same_and_says_so(node):
    shared = node.converge(SHORT, nvidia_smi="/nowhere/nvidia-smi")
    assert shared.done
    assert "/nowhere/nvidia-smi does not set the time slice" in shared.message
    assert node.journal().read(node.gpu).time_slice is None
    assert node.converge(None, nvidia_smi="/nowhere/nvidia-smi").done


def test_killed_at_any_step_it_ends_as_without_the_kill(node):
    node.change(time_slice=2)
    taking, leaving = points_of(node, SHORT), points_of(node, None)
    for point in taking:
        assert killed_at(node, SHORT, point), point
        assert node.converge(SHORT).done
        assert length(node) == 1
        assert node.converge(None).done
        assert length(node) == 2
    for point in leaving:
        assert node.converge(SHORT).done
        assert killed_at(node, None, point), point
        assert node.converge(None).done
        assert (length(node), node.journal().gpus()) == (2, [])


def test_from_mps_to_time_slices_and_back_what_was_found_first_is_given_back(node):
    node.change(time_slice=2)
    assert node.converge().done
    assert node.converge(SHORT).done
    assert not node.ours()
    assert (node.driver.compute_mode(node.gpu), length(node)) == ("default", 1)
    assert node.converge(FOUR).done
    assert (node.driver.compute_mode(node.gpu), length(node)) == ("exclusive_process", 2)
    until(lambda: node.converge(None).done)
    assert (node.driver.compute_mode(node.gpu), length(node)) == ("default", 2)
