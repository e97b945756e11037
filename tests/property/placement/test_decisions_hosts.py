"""The best host for a piece, found by few looks, is the one that weighing every cell gives."""

import random
from collections import defaultdict
from contextlib import contextmanager

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from apportion.placement import (
    FOREVER,
    Ask,
    DeviceAsk,
    GpuState,
    Held,
    HostHeld,
    NodeState,
    Offer,
    PoolIndex,
    choosing,
)
from apportion.placement.hosts import Yardstick
from apportion.placement.keys import mixed
from apportion.placement.policies import POLICIES

SIZES = (5, 10, 23, 50, 81, 100)


def fleet(rng):
    nodes, gpu = [], 0
    for at in range(rng.randrange(8, 60)):
        count = rng.choice((1, 2, 4, 8))
        model = {"gpuModel": rng.choice(("A", "B", "C"))}
        gpus = tuple(GpuState(gpu + each, "shares", 100, model, {}) for each in range(count))
        gpu += count
        cpu, memory = rng.choice((6, 8, 12)) * 1000 * count, rng.choice((16, 32, 64)) * 1024 * count
        nodes.append(NodeState(at, f"n{at}", cpu, memory, gpus))
    return nodes


def asked(rng):
    cpu, memory = rng.randrange(1, 24_000), rng.randrange(1, 96 * 1024)
    if rng.random() < 0.5:
        cpu, memory = rng.choice((1, 2, 4, 8, 16)) * 1000, rng.choice((1, 4, 16, 64)) * 1024
    return Ask((DeviceAsk("gpu.share", 1, rng.choice(SIZES)),), cpu, memory)


def judged(nodes, yardstick, ask):
    """Return the node of the lowest loss: of each cell the first that has enough is told."""
    (device,) = ask.devices
    cells = defaultdict(list)
    for node in sorted(nodes, key=lambda each: mixed(each.id)):
        if node.vcpu_free < ask.vcpu_milli or node.memory_free < ask.memory_mib:
            continue
        states = [gpu.state for gpu in node.gpus]
        for state in {each for each in states if each.free >= device.units}:
            idle = 0 if state.busy else states.count(state)
            grade = yardstick.grade(node.vcpu_free, node.memory_free)
            cells[state, idle, grade].append(node)
    ranks = [
        (loss(node, yardstick, ask, state), mixed(node.id), node.id)
        for (state, *_), those in cells.items()
        for node in those[:1]
    ]
    return min(ranks)[-1] if ranks else None


def loss(node, yardstick, ask, taken):
    """Return what the node's GPUs are worth less once a GPU of a state is used, in grains."""
    before = yardstick.level(node.vcpu_free, node.memory_free)
    after = yardstick.level(node.vcpu_free - ask.vcpu_milli, node.memory_free - ask.memory_mib)
    worth = sum(gpu.state.worths[before] - gpu.state.worths[after] for gpu in node.gpus)
    left = taken.model.state(taken.busy + ask.devices[0].units)
    whole = worth + taken.worths[after] - left.worths[after]
    return POLICIES["fragmentation"].grains(taken, whole)


@contextmanager
def weighing(cells):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choosing, "_WEIGHED", cells)
        patch.setattr(choosing, "_TIES", cells)
        yield


@given(st.integers(0, 2**32))
def test_few_looks_find_what_weighing_every_cell_finds(seed):
    with weighing(2**64):
        replay(seed, exactly=True)


@given(st.integers(0, 2**32), st.integers(1, 3))
def test_a_sample_of_the_cells_finds_a_place_wherever_there_is_one(seed, cells):
    with weighing(cells):
        replay(seed, exactly=False)


def replay(seed, *, exactly):
    rng = random.Random(seed)
    nodes = fleet(rng)
    yardstick = Yardstick(nodes)
    index = PoolIndex(nodes)
    held, dropped = [], 0
    for number in range(rng.randrange(20, 250)):
        ask = asked(rng)
        best = judged(nodes, yardstick, ask)
        answer = index.place(ask, 0, FOREVER, 0)
        chosen = answer.node if isinstance(answer, Offer) else None
        assert (chosen == best) if exactly else (chosen is None) == (best is None), f"seed {seed}"
        if isinstance(answer, Offer):
            (piece,) = answer.pieces
            node = index.nodes[answer.node]
            was = yardstick.level(node.vcpu_free, node.memory_free)
            index.book(piece.gpu, (f"r{number}", 0), Held(0, FOREVER, piece.units))
            host = HostHeld(0, FOREVER, ask.vcpu_milli, ask.memory_mib)
            index.book_host(answer.node, f"r{number}", host)
            dropped += yardstick.level(node.vcpu_free, node.memory_free) < was
            held.append((piece.gpu, answer.node, f"r{number}"))
        if held and rng.random() < 0.3:
            gpu, node, holder = held.pop(rng.randrange(len(held)))
            index.free(gpu, (holder, 0))
            index.free_host(node, holder)
    event("hosts ran short" if dropped else "hosts had enough")
