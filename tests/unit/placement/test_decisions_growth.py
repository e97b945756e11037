"""The work of a decision, counted in calls and not by the clock, does not grow with the fleet."""

import random
import sys

import pytest
from placement_builders import one_of, share, slots

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
)

KINDS = 20
SEED = 11


def nodes(count, split, *, hosts):
    def build(at):
        group = {"gpuModel": f"M{at % KINDS}"}
        gpus = tuple(
            GpuState(8 * at + each, split, 100 if split == "shares" else 8, group, {})
            for each in range(8)
        )
        vcpu, memory = (64_000, 262_144) if hosts else (0, 0)
        return NodeState(at, f"n{at}", vcpu, memory, gpus)

    return [build(at) for at in range(count)]


def asked(rng, split, *, hosts):
    if split == "slots":
        model = (one_of("gpuModel", f"M{rng.randrange(KINDS)}"),) if rng.random() < 0.5 else ()
        return Ask((slots(rng.choice((1, 2, 4, 8)), 1, *model),))
    device = share(rng.choice((10, 23, 50, 81, 100)))
    if not hosts:
        return Ask((device,))
    return Ask((device,), rng.randrange(500, 16_000), rng.randrange(500, 65_536))


class World:
    """A fleet, nine tenths full, in which things come and go."""

    def __init__(self, count, split, *, hosts):
        self.index = PoolIndex(nodes(count, split, hosts=hosts))
        self.rng = random.Random(SEED)
        self.draw = lambda: asked(self.rng, split, hosts=hosts)
        self.held = []
        self.number = 0
        refused = 0
        while refused < 5:
            refused = 0 if self.decide(self.draw()) else refused + 1
        for _ in range(len(self.held) // 8):
            self.release()

    def decide(self, ask):
        answer = self.index.place(ask, 0, FOREVER, 0)
        if not isinstance(answer, Offer):
            return False
        self.number += 1
        for at, piece in enumerate(answer.pieces):
            self.index.book(piece.gpu, (f"r{self.number}", at), Held(0, FOREVER, piece.units))
        if ask.vcpu_milli:
            host = HostHeld(0, FOREVER, ask.vcpu_milli, ask.memory_mib)
            self.index.book_host(answer.node, f"r{self.number}", host)
        self.held.append((f"r{self.number}", answer))
        return True

    def release(self):
        holder, offer = self.held.pop(self.rng.randrange(len(self.held)))
        for at, piece in enumerate(offer.pieces):
            self.index.free(piece.gpu, (holder, at))
        self.index.free_host(offer.node, holder)

    def work(self, rounds):
        """Return the calls that decisions take on average, builtin ones included."""
        calls = 0

        def count(_frame, event, _arg):
            nonlocal calls
            calls += event in ("call", "c_call")

        for _ in range(rounds):
            self.release()
            ask = self.draw()
            sys.setprofile(count)
            try:
                self.decide(ask)
            finally:
                sys.setprofile(None)
        return calls // rounds


@pytest.mark.parametrize(
    ("split", "hosts", "most"), [("slots", False, 2), ("shares", False, 2), ("shares", True, 3)]
)
def test_a_decision_takes_hardly_more_work_in_a_fleet_eight_times_as_large(split, hosts, most):
    small, large = (World(count, split, hosts=hosts).work(300) for count in (40, 320))
    assert large <= most * small, f"{small} and {large} calls, seed {SEED}"


def test_equal_device_asks_are_one_key_and_unequal_ones_are_not():
    model = one_of("gpuModel", "H100")
    assert {slots(1, 1, model): "a"}[slots(1, 1, model)] == "a"
    assert slots(1, 1, model) != slots(2, 1, model)
    assert DeviceAsk("gpu") != DeviceAsk("gpu.mig")
