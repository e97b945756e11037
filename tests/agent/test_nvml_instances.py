"""What the simulated driver says and does about MIG instances is what NVML documents."""

import ctypes

import pynvml
import pytest
from nvml_world import (
    H100,
    child,
    create,
    fill,
    gpu,
    instances_of,
    mig_devices,
    mig_gpu,
    placements_of,
    profiles_of,
)

from apportion.geometry import board_by_key
from apportion.testing.nvml import MACHINES


@pytest.mark.parametrize("kind", [kind for kind in MACHINES if kind != "l4x2"])
def test_profiles_and_placements_are_those_of_the_package_where_it_knows_them(on, kind):
    machine = on(kind)
    for number, model in enumerate(MACHINES[kind].models):
        one = mig_gpu(machine, number)
        told = profiles_of(one)
        known = board_by_key(model.board).profiles
        assert sorted(told) == sorted(profile.id for profile in known)
        for profile in known:
            info = told[profile.id]
            places = [(place.start, place.size) for place in profile.placements]
            assert placements_of(one, profile.id) == places
            assert info.name == f"MIG {profile.name}"
            assert info.sliceCount == profile.compute_slices
            assert info.instanceCount == profile.max_instances
            assert info.memorySizeMB > 0
            for figure, answered in (
                (profile.sm, info.multiprocessorCount),
                (profile.memory_mib, info.memorySizeMB),
                (profile.engines.copy_engines, info.copyEngineCount),
                (profile.engines.decoders, info.decoderCount),
                (profile.engines.encoders, info.encoderCount),
                (profile.engines.jpeg, info.jpegCount),
                (profile.engines.ofa, info.ofaCount),
            ):
                assert figure is None or figure == answered


def test_the_number_that_queries_take_is_not_the_id_that_all_else_takes(on):
    machine = on("dgx-h100")
    one = mig_gpu(machine)
    assert pynvml.nvmlDeviceGetGpuInstanceProfileInfo(one, 2).id == 9
    assert pynvml.nvmlDeviceGetGpuInstanceProfileInfo(one, 2, version=1).id == 9
    assert pynvml.nvmlDeviceGetGpuInstanceProfileInfoById(one, 9).sliceCount == 3
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceCreateGpuInstance(one, 2)  # a number, and nobody's id
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetGpuInstanceProfileInfo(one, 8)  # 2g+me: the A30 has it
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetGpuInstanceProfileInfo(one, pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT)


def test_whether_profiles_can_be_asked_with_the_mode_off_differs_and_is_told(on):
    def told(one):
        fields = [pynvml.NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED, 199, 1]
        values = pynvml.nvmlDeviceGetFieldValues(one, fields)
        return [(value.nvmlReturn, value.value.uiVal) for value in values]

    on("mixed")  # an A100, an A30, an H100 and an RTX PRO 6000
    assert profiles_of(gpu(0)) == {}
    assert len(profiles_of(gpu(2))) == 7
    assert told(gpu(0)) == [(0, 0), (0, 0), (pynvml.NVML_ERROR_NOT_SUPPORTED, 0)]
    assert told(gpu(2)) == [(0, 1), (0, 1), (pynvml.NVML_ERROR_NOT_SUPPORTED, 0)]


def test_the_driver_chooses_the_highest_place_and_a_named_one_must_be_free_and_legal(on):
    machine = on()
    one = mig_gpu(machine)
    create(one, H100["3g"])
    assert instances_of(one) == [(1, 9, 4, 4)]
    for profile, start in (("1g", 4), ("3g", 4), ("7g", 0)):
        with pytest.raises(pynvml.NVMLError_InsufficientResources):
            create(one, H100[profile], start)
    bad = pynvml.c_nvmlGpuInstancePlacement_t(1, 4)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(one, H100["3g"], ctypes.byref(bad))
    create(one, H100["1g"], 2)
    capacity = pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity
    left = {name: capacity(one, profile_id) for name, profile_id in H100.items()}
    assert left == {
        "1g": 3, "1g+me": 1, "1g double": 1, "2g": 1, "3g": 0, "4g": 0, "7g": 0
    }  # fmt: skip
    assert len(instances_of(one)) == 2  # asking made nothing


def test_one_engine_can_be_what_is_missing(on):
    machine = on()
    one = mig_gpu(machine)
    create(one, H100["1g+me"], 0)
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        create(one, H100["1g+me"], 1)
    create(one, H100["1g"], 1)


def test_ids_are_used_again_uuids_never_and_mig_indices_have_holes(on):
    machine = on()
    one = mig_gpu(machine)
    made = [create(one, H100["1g"], start) for start in range(3)]
    filled = [fill(each) for each in made]
    before = mig_devices(one)
    assert before.count(None) == 4
    pynvml.nvmlComputeInstanceDestroy(filled[1][0])
    pynvml.nvmlGpuInstanceDestroy(made[1])
    assert mig_devices(one) == [before[0], None, before[2], None, None, None, None]
    again = create(one, H100["2g"], 4)
    fill(again)
    assert pynvml.nvmlGpuInstanceGetInfo(again).id == 2  # as the one that is gone had
    after = mig_devices(one)
    assert after[0::2] == before[0::2]
    assert after[1] not in {None, *before}


def test_handles_of_what_is_gone_are_invalid_also_when_its_id_is_used_again(on):
    machine = on()
    one = mig_gpu(machine)
    old = create(one, H100["1g"], 0)
    compute, device = fill(old)
    pynvml.nvmlComputeInstanceDestroy(compute)
    pynvml.nvmlGpuInstanceDestroy(old)
    new = create(one, H100["1g"], 0)
    fill(new)
    for call in (
        lambda: pynvml.nvmlGpuInstanceGetInfo(old),
        lambda: pynvml.nvmlGpuInstanceDestroy(old),
        lambda: pynvml.nvmlComputeInstanceDestroy(compute),
        lambda: pynvml.nvmlDeviceGetUUID(device),
        lambda: pynvml.nvmlGpuInstanceGetInfo(one),
    ):
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            call()
    assert len(instances_of(one)) == 1
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetGpuInstanceById(one, 9)


def test_a_mig_device_says_which_part_of_which_gpu_it_is(on):
    machine = on()
    one = mig_gpu(machine, 3)
    made = create(one, H100["3g"], 4)
    _, device = fill(made)
    attributes = pynvml.nvmlDeviceGetAttributes(device)
    parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
    assert pynvml.nvmlDeviceGetName(device) == "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
    assert pynvml.nvmlDeviceGetUUID(device).startswith("MIG-")
    assert pynvml.nvmlDeviceGetIndex(parent) == 3
    assert pynvml.nvmlDeviceIsMigDeviceHandle(device).value == 1
    assert pynvml.nvmlDeviceIsMigDeviceHandle(one).value == 0
    assert (attributes.multiprocessorCount, attributes.memorySizeMB) == (60, 40448)
    assert (attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount) == (3, 3)
    assert pynvml.nvmlDeviceGetMemoryInfo(device).total == 40448 << 20
    again = pynvml.nvmlDeviceGetHandleByUUID(pynvml.nvmlDeviceGetUUID(device))
    assert pynvml.nvmlDeviceGetGpuInstanceId(again) == pynvml.nvmlGpuInstanceGetInfo(made).id
    assert pynvml.nvmlDeviceGetComputeInstanceId(again) == 0
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetGpuInstanceId(one)


def test_compute_instances_share_a_gpu_instance_by_compute_slices(on):
    machine = on()
    made = create(mig_gpu(machine), H100["7g"])
    capacity = pynvml.nvmlGpuInstanceGetComputeInstanceRemainingCapacity
    assert [capacity(made, profile) for profile in (0, 1, 2, 3, 4)] == [7, 3, 2, 1, 1]
    pynvml.nvmlGpuInstanceCreateComputeInstance(made, 2)
    wide = pynvml.nvmlGpuInstanceCreateComputeInstance(made, 2)
    info = pynvml.nvmlComputeInstanceGetInfo(wide)
    assert (info.id, info.profileId, info.placement.start, info.placement.size) == (1, 2, 4, 3)
    assert pynvml.nvmlDeviceGetName(info.device).endswith("MIG 3c.7g.80gb")
    assert [capacity(made, profile) for profile in (0, 1, 2, 3, 4)] == [1, 0, 0, 0, 0]
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        pynvml.nvmlGpuInstanceCreateComputeInstance(made, 2)
    with pytest.raises(pynvml.NVMLError_InUse):
        pynvml.nvmlGpuInstanceDestroy(made)


def test_what_is_in_use_cannot_be_destroyed_and_its_neighbour_can(on):
    machine = on()
    one = mig_gpu(machine)
    made = [create(one, H100["1g"], start) for start in (0, 1)]
    computes = [fill(each)[0] for each in made]
    machine.hold(0, 99, used_bytes=5 << 20, gpu_instance=1, compute=0)
    for call in (
        lambda: pynvml.nvmlComputeInstanceDestroy(computes[0]),
        lambda: pynvml.nvmlGpuInstanceDestroy(made[0]),
    ):
        with pytest.raises(pynvml.NVMLError_InUse):
            call()
    pynvml.nvmlComputeInstanceDestroy(computes[1])
    pynvml.nvmlGpuInstanceDestroy(made[1])
    machine.leave(99)
    pynvml.nvmlComputeInstanceDestroy(computes[0])
    pynvml.nvmlGpuInstanceDestroy(made[0])
    assert instances_of(one) == []


def test_a_child_made_by_fork_does_not_share_its_parents_lock(on):
    machine = on()
    one = mig_gpu(machine)
    code = """
import os, pynvml
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
children = []
for _ in range(4):
    pid = os.fork()
    if pid == 0:
        for _ in range(50):
            try:
                made = pynvml.nvmlDeviceCreateGpuInstance(gpu, 19)
            except pynvml.NVMLError_InsufficientResources:
                continue
            pynvml.nvmlGpuInstanceDestroy(made)
        os._exit(0)
    children.append(pid)
print([os.waitpid(pid, 0)[1] for pid in children])
"""
    out, err = child(machine, code).communicate(timeout=60)
    assert (out, err) == ("[0, 0, 0, 0]\n", "")
    assert instances_of(one) == []
