"""What a picture takes of memory: bounded by the GPU, whatever comes and goes."""

import gc
import random
import tracemalloc

import pytest
from placement_builders import one_of, slots

from apportion.placement import FOREVER, Ask, AtomState, GpuState, Held, NodeState, Offer, PoolIndex

GPUS = 2_000
KINDS = 20
PROFILE = {"migProfile": "1g"}
# What docs/reference/placement.md states, with room for the order in which blocks fill up.
A_GPU, A_BOOKING = 400, 800


def fleet(split):
    def gpu(number):
        group = {"gpuModel": f"M{number // 8 % KINDS}"}
        own = {"node": f"n{number // 8}", "gpuIndex": number % 8}
        atoms = tuple(AtomState(8 * number + at, 1 << at, "1g", PROFILE) for at in range(8))
        return GpuState(number, split, 8, group, own, atoms=atoms if split == "mig" else ())

    return [
        NodeState(at, f"n{at}", 0, 0, tuple(gpu(8 * at + each) for each in range(8)))
        for at in range(GPUS // 8)
    ]


def measured():
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def fill_and_stir(index, split, rounds):
    """Hold about two pieces a GPU, then let go and ask again; return how many are held."""
    rng = random.Random(7)
    cls = "gpu.mig" if split == "mig" else "gpu.slot"
    kinds = [slots(1, 1, one_of("gpuModel", f"M{kind}")) for kind in range(KINDS)]
    asks = [Ask((type(each)(cls, 1, 1, each.selector),)) for each in kinds]
    held = []
    for number in range(2 * GPUS + rounds):
        if len(held) >= 2 * GPUS:
            gpu, key = held.pop(rng.randrange(len(held)))
            index.free(gpu, key)
        offer = index.place(rng.choice(asks), 0, FOREVER, 0)
        if isinstance(offer, Offer):
            (piece,) = offer.pieces
            key = (f"r{number}", 0)
            index.book(piece.gpu, key, Held(0, FOREVER, piece.units))
            held.append((piece.gpu, key))
    return len(held)


@pytest.mark.parametrize("split", ["mig", "slots"])
def test_a_gpu_and_a_booking_take_no_more_than_is_stated(split):
    tracemalloc.start()
    try:
        nodes = fleet(split)
        given = measured()
        index = PoolIndex(nodes)
        indexed = measured()
        assert (indexed - given) / GPUS < A_GPU
        count = fill_and_stir(index, split, 0)
        filled = measured()
        assert (filled - indexed) / count < A_BOOKING
    finally:
        tracemalloc.stop()


def test_what_comes_and_goes_leaves_nothing_behind():
    tracemalloc.start()
    try:
        index = PoolIndex(fleet("slots"))
        count = fill_and_stir(index, "slots", 100)
        before = measured()
        for node in index.nodes.values():
            for gpu in node.gpus:
                for key in list(gpu.held):
                    index.free(gpu.id, key)
        assert fill_and_stir(index, "slots", 1_000) == count
        assert (measured() - before) / GPUS < A_GPU / 4
    finally:
        tracemalloc.stop()
