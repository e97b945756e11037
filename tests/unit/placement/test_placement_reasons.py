"""Why not: each reason by an example, and counts that add up to the nodes."""

import pytest
from placement_acting import HOURS, book, book_host, place
from placement_builders import gpu, mig, node, one_of, pool, profile, share, slots, whole

from apportion.placement import DeviceAsk, Reason, Verdict
from apportion.placement.search import SearchExhaustedError
from apportion.placement.verdicts import HELP, verdict


def why(index, *devices, **resources):
    answer = place(index, *devices, **resources)
    assert isinstance(answer, Verdict)
    assert sum(reason.count for reason in answer.reasons) == answer.nodes
    return answer.code


def test_a_node_that_is_not_healthy():
    assert why(pool(node(1, gpu(1), healthy=False)), slots(1)) == "node_unhealthy"
    assert why(pool(node(1, healthy=False)), vcpu=1) == "node_unhealthy"


def test_whole_gpus_where_all_are_split():
    assert why(pool(node(1, gpu(1))), DeviceAsk("gpu")) == "no_unsplit_gpu"


def test_a_class_that_the_node_does_not_have():
    assert why(pool(node(1, whole(1))), slots(1)) == "class_not_offered"
    assert why(pool(node(1, gpu(1))), share(10)) == "class_not_offered"
    assert why(pool(node(1)), DeviceAsk("gpu")) == "class_not_offered"
    assert why(pool(node(1)), profile("1g")) == "class_not_offered"


def test_a_profile_that_no_gpu_is_cut_into():
    assert why(pool(node(1, mig(1, "3g", "2g"))), profile("1g")) == "profile_not_in_layout"
    assert why(pool(node(1, whole(1))), profile("1g")) == "profile_not_in_layout"


def test_a_selector_that_matches_nothing():
    other = one_of("gpuModel", "A30")
    assert why(pool(node(1, gpu(1))), slots(1, 1, other)) == "selector_matches_nothing"
    elsewhere = one_of("node", "n9")
    assert why(pool(node(1, gpu(1))), slots(1, 1, elsewhere)) == "selector_matches_nothing"


def test_more_than_the_node_has_when_it_is_empty():
    index = pool(node(1, gpu(1), gpu(2), vcpu=8000, memory=64))
    assert why(index, slots(5)) == "larger_than_any_node"
    assert why(index, slots(3, 3)) == "larger_than_any_node"
    assert why(index, slots(4), slots(3), slots(2)) == "larger_than_any_node"
    assert why(index, slots(1), vcpu=8001) == "larger_than_any_node"
    assert why(index, memory=65) == "larger_than_any_node"
    index = pool(node(1, mig(1, "1g", "3g")))
    assert why(index, profile("1g", 2)) == "larger_than_any_node"


def test_gpus_that_cannot_be_booked_now():
    index = pool(node(1, gpu(1), gpu(2, bookable=False)))
    assert why(index, slots(4, 2)) == "gpu_unbookable"
    # A GPU whose instances are being made has none to name.
    assert why(pool(node(1, mig(1, bookable=False))), profile("1g")) == "gpu_unbookable"


def test_units_that_others_hold():
    index = pool(node(1, gpu(1)))
    book(index, 1, "other", (0, 4), 0b0111)
    assert why(index, slots(2), at=(3, 5)) == "units_booked"


def test_host_resources_that_others_hold():
    index = pool(node(1, gpu(1), vcpu=8000, memory=64))
    book_host(index, 1, "other", (0, 4), vcpu=7000, memory=60)
    assert why(index, slots(1), vcpu=2000) == "host_resources_short"
    assert why(index, slots(1), memory=5) == "host_resources_short"
    assert why(index, vcpu=2000) == "host_resources_short"


def test_a_node_that_lacks_cpu_and_memory_counts_once():
    index = pool(*(node(at, gpu(at), vcpu=8000, memory=64) for at in (1, 2, 3)))
    for at in (1, 2):
        book_host(index, at, "other", (0, HOURS), vcpu=8000, memory=64)
    book_host(index, 3, "other", (0, HOURS), memory=64)
    answer = place(index, slots(1), vcpu=1, memory=1)
    assert answer.reasons == (Reason("host_resources_short", 3),)


def test_host_resources_that_are_held_at_another_time_are_not_short():
    index = pool(node(1, gpu(1), vcpu=8000))
    book_host(index, 1, "earlier", (0, 4), vcpu=8000)
    book(index, 1, "other", (4, 8), 0b1111)
    assert why(index, slots(1), vcpu=1000, at=(4, 8)) == "units_booked"


def test_counts_add_up_and_what_helps_first_comes_first():
    index = pool(
        node(1, gpu(1), healthy=False),
        *(node(at, gpu(at)) for at in (2, 3)),
        node(4, gpu(4), vcpu=1000),
        node(5, gpu(5)),
        node(6),
    )
    for gpu_id in (2, 3):
        book(index, gpu_id, "other", (0, HOURS), -1)
    book_host(index, 5, "other", (0, HOURS), vcpu=95_000)
    answer = place(index, slots(1), vcpu=2000)
    assert answer.reasons == (
        Reason("units_booked", 2),
        Reason("host_resources_short", 1),
        Reason("class_not_offered", 1),
        Reason("larger_than_any_node", 1),
        Reason("node_unhealthy", 1),
    )
    assert answer.message == (
        "0 of 6 nodes: 2 booked, 1 short of CPU or memory, "
        "1 with nothing of that class, 1 smaller than what is asked, 1 not healthy"
    )


def test_a_search_that_was_cut_short_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("apportion.placement.index.steps_after", lambda cut: 2 >> cut)
    index = pool(node(1, gpu(1, ruler=5), gpu(2, ruler=5)), node(2, gpu(3, ruler=2)))
    answer = place(index, slots(2), slots(1, 2), slots(3))
    assert answer.reasons == (
        Reason("search_exhausted", 1),
        Reason("larger_than_any_node", 1),
    )


def test_each_search_that_was_cut_short_leaves_the_next_node_half_the_tries(
    monkeypatch: pytest.MonkeyPatch,
):
    given = []

    def cut_short(*_args, steps):
        given.append(steps)
        raise SearchExhaustedError

    monkeypatch.setattr("apportion.placement.index.place_on", cut_short)
    index = pool(*(node(at, gpu(at)) for at in range(9)))
    assert place(index, slots(1), slots(1)).code == "search_exhausted"
    assert given == [20_000, 10_000, 5000, 2500, 1250, 625, 312, 200, 200]


def test_every_reason_has_help_and_words():
    for code in HELP:
        answer = verdict(1, {code: 1})
        assert answer.hint == HELP[code]
        assert answer.message.startswith(("0 of 1 nodes: 1 ", "the pool"))
