"""Whole GPUs of one node that differ in what no ask minds are still GPUs of one node."""

from apportion.placement import Ask, DeviceAsk, GpuState, NodeState, Offer, PoolIndex, Selector


def test_two_whole_gpus_of_different_numa_nodes_are_found_together():
    gpus = tuple(
        GpuState(
            id=number,
            split="none",
            ruler=1,
            group={"gpuModel": "T4"},
            attributes={"numaNode": number},
            atom=number,
        )
        for number in (1, 2)
    )
    index = PoolIndex([NodeState(1, "n1", 8000, 1024, gpus)])
    ask = Ask((DeviceAsk("gpu", 2, 1, Selector(())),), 0, 0)
    found = index.place(ask, 0, 100, 0)
    assert isinstance(found, Offer)
    assert {piece.gpu for piece in found.pieces} == {1, 2}
