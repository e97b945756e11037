"""The harness of the public experiment, on examples that can be worked out by hand."""

import random

import pytest
from bench.churn import LONGEST, Job, _stream
from bench.replay.filling import fill
from bench.replay.fragmentation import Fragmentation, usual
from bench.replay.ours import OurPlacer
from bench.replay.placers import Points, RulePlacer
from bench.replay.rules import BestFit, Fgd, FirstFit, Need, State, after, choices, fits
from bench.replay.trace import TRACES, Node, Task, arrivals, capacity, nodes, ordered, tasks

ANY = frozenset[str]()
KINDS = {
    (2000, 1, 300, ANY): 0.5,
    (8000, 1, 100, ANY): 0.25,
    (1000, 0, 0, ANY): 0.125,
    (1000, 1, 100, frozenset({"T4"})): 0.125,
}


def test_what_usual_tasks_cannot_use_is_fragmented():
    measure = Fragmentation(KINDS)
    # 300 goes on the second GPU only, so 200 are lost to it; the second kind lacks CPU, the third
    # wants no GPU, the fourth another model: all 700 are lost to each.
    assert measure.of("G2", 4000, (200, 500)) == pytest.approx(0.5 * 200 + 0.5 * 700)
    assert measure.of("T4", 4000, (200, 500)) == pytest.approx(0.5 * 200 + 0.375 * 700)
    assert measure.of("T4", 8000, (200, 500)) == pytest.approx(0.5 * 200 + 0.125 * 700)
    assert measure.of("T4", 1999, (200, 500)) == pytest.approx(0.875 * 700)


def test_several_gpus_are_usable_only_when_there_are_enough():
    measure = Fragmentation({(0, 2, 1000, ANY): 1.0})
    assert measure.of("G2", 0, (500, 1000)) == 1500
    assert measure.of("G2", 0, (500, 1000, 1000)) == 500


def test_the_descent_takes_the_gpu_where_fragmentation_grows_least():
    rule = Fgd({(0, 1, 300, ANY): 1.0})
    state, need = State("G2", 0, (300, 500)), Need(0, 1, 300)
    # 0 before; on the first GPU it stays 0, on the second 200 would be left that nobody can use.
    assert rule.choose(state, need, random.Random(0)) == 300
    assert rule.points(state, need) == 50
    assert rule.points(State("G2", 0, (500,)), need) == 45  # 100 / (1 + e^0.2), cut


def test_points_are_whole_so_that_near_ties_go_to_the_first_node():
    rule = BestFit()
    assert rule.points(State("G2", 8000, (1000,)), Need(8000, 1, 1000)) == 100
    assert rule.points(State("G2", 8000, (1000,)), Need(7000, 1, 1000)) == 99
    assert rule.points(State("G2", 8000, (1000,)), Need(6000, 1, 1000)) == 99


def test_room_on_a_node():
    state = State("G2", 4000, (200, 500, 1000))
    assert fits(state, Need(4000, 1, 500))
    assert not fits(state, Need(4001, 1, 500))
    assert not fits(state, Need(0, 2, 1000))
    assert choices(state.gpus, Need(0, 1, 300)) == [500, 1000]
    assert after(state.gpus, Need(0, 1, 300), 1000) == (200, 500, 700)
    assert after((1000, 1000, 1000), Need(0, 2, 1000), 1000) == (0, 0, 1000)


def test_a_run_counts_what_is_allocated_and_drops_what_does_not_fit():
    fleet = [Node("a", 2000, 10, 1, "G2"), Node("b", 2000, 10, 1, "T4")]
    share = Task(1000, 1, 1, 500)
    listed = [share, Task(0, 0, 1, 1000), Task(0, 11, 0, 0), Task(0, 0, 1, 500, frozenset({"T4"}))]
    placer = RulePlacer(Points(FirstFit(), listed), fleet, random.Random(0))
    # 500 on a; a whole one on b; too much memory; 500 of T4, which is full.
    assert fill(placer, listed, capacity(fleet)) == {25: 25.0, 75: 75.0, 100: 75.0}


def test_what_goes_leaves_room_for_both_kinds_of_placer():
    fleet = [Node("a", 2000, 10, 2, "G2")]
    half, pair = Task(1000, 1, 1, 500), Task(2000, 0, 2, 1000)
    rule = RulePlacer(Points(BestFit(), [half, pair]), fleet, random.Random(0))
    for placer in (rule, OurPlacer(fleet)):
        lease = placer.place(half)
        assert lease is not None
        assert placer.place(pair) is None
        placer.free(lease)
        assert placer.place(pair) is not None
        assert not placer.rooms.takes(0, half)


def test_the_trace_is_the_published_one():
    listed = tasks("default")
    assert (len(nodes()), capacity(nodes()), len(listed)) == (1213, 6_212_000, 8152)
    assert len(usual(listed)) == 35
    assert all(task.milli % 10 == 0 for trace in TRACES for task in tasks(trace))
    arriving = arrivals(listed, capacity(nodes()), random.Random(42))
    asked = sum(task.gpu_milli for task in arriving)
    assert asked >= 1.3 * 6_212_000 > asked - arriving[-1].gpu_milli


def test_orders_are_permutations_and_names_can_be_random():
    rng = random.Random(1)
    assert ordered("by_gpus_down", rng)[0].gpus == 8
    assert ordered("by_gpus", rng)[0].gpus == 1
    assert sorted(ordered("random", rng), key=lambda node: node.name) == list(nodes())
    assert not {node.name for node in ordered("renamed", rng)} & {node.name for node in nodes()}


def test_the_stream_asks_for_its_share_of_the_fleets_time():
    listed = [task for task in tasks("default") if task.seconds]
    fleet = nodes()[::8]
    stream = _stream(listed, capacity(fleet), Job("ours", 100, 50, 1), random.Random(1))
    assert max(arrival.length for arrival in stream) <= LONGEST
    assert all(arrival.patience == 0.5 * arrival.length for arrival in stream)
    asked = sum(arrival.what.gpu_milli * arrival.length for arrival in stream)
    assert asked / (capacity(fleet) * 3 * LONGEST) == pytest.approx(1, abs=0.1)
