"""The simulated driver does what NVML documents, through the unmodified binding."""

import contextlib
import ctypes
import signal
import subprocess
import sys
import time

import pynvml
import pytest
from nvml_world import (
    NONE,
    child,
    create,
    fill,
    instances_of,
    mig_devices,
    placements_of,
    profiles_of,
)

from apportion.errors import InvalidInputError, InvalidStateError, UnavailableError
from apportion.geometry import board_by_key
from apportion.testing.nvml import (
    KILL_AFTER,
    KILL_BEFORE,
    KILL_WHILE,
    MACHINES,
    Simulation,
    build_library,
    hosts,
)

H100 = {"1g": 19, "1g+me": 20, "1g double": 15, "2g": 14, "3g": 9, "4g": 5, "7g": 0}


def gpu(number=0):
    return pynvml.nvmlDeviceGetHandleByIndex(number)


def mig_gpu(machine, number=0):
    """Return a GPU in MIG mode, whatever it takes."""
    pynvml.nvmlDeviceSetMigMode(gpu(number), 1)
    if pynvml.nvmlDeviceGetMigMode(gpu(number))[0] == 0:
        machine.reset(number)
    return gpu(number)


def test_an_unmodified_binding_in_a_process_of_its_own_finds_the_machine_by_name_alone(tmp_path):
    machine = Simulation.create(tmp_path / "m", "a100x8")
    code = """
import pynvml
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(7)
pci = pynvml.nvmlDeviceGetPciInfo(gpu)
print(pynvml.nvmlDeviceGetCount(), pynvml.nvmlDeviceGetName(gpu), hex(pci.pciDeviceId), pci.busId)
"""
    out, err = child(machine, code).communicate(timeout=60)
    assert (out, err) == ("8 NVIDIA A100-SXM4-80GB 0x20b210de 00000000:8B:00.0\n", "")


def test_without_a_machine_the_driver_is_not_loaded(tmp_path):
    machine = Simulation.create(tmp_path / "m")
    machine.remove()
    code = "import pynvml\ntry: pynvml.nvmlInit()\nexcept pynvml.NVMLError as e: print(e)"
    out, _ = child(machine, code).communicate(timeout=60)
    assert out == "Driver Not Loaded\n"


def test_a_state_file_of_another_layout_is_refused_as_a_driver_of_another_version_is(on, tmp_path):
    machine = Simulation.create(tmp_path / "m")
    (tmp_path / "m" / "state").write_bytes(b"x" * 100)
    code = "import pynvml\ntry: pynvml.nvmlInit()\nexcept pynvml.NVMLError as e: print(e.value)"
    out, _ = child(machine, code).communicate(timeout=60)
    assert out == "18\n"


@pytest.mark.parametrize("kind", MACHINES)
def test_every_gpu_of_every_machine_says_what_it_is(on, kind):
    on(kind)
    seen = set()
    for number, model in enumerate(MACHINES[kind].models):
        one = gpu(number)
        uuid = pynvml.nvmlDeviceGetUUID(one)
        address = pynvml.nvmlDeviceGetPciInfo(one).busId
        assert pynvml.nvmlDeviceGetName(one) == model.name
        assert pynvml.nvmlDeviceGetMemoryInfo(one).total == model.memory_mib << 20
        assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(uuid)) == number
        assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByPciBusId(address)) == number
        seen.add(uuid)
    assert len(seen) == pynvml.nvmlDeviceGetCount() == len(MACHINES[kind].models)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        gpu(len(seen))


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


def test_a_structure_of_another_version_is_refused(on):
    on()
    with pytest.raises(pynvml.NVMLError) as refused:
        pynvml.nvmlDeviceGetMemoryInfo(gpu(), version=0x0300_0028)
    assert refused.value.value == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH


def test_hopper_changes_its_mode_at_once_and_ampere_at_the_reset(on):
    on("dgx-h100")
    assert pynvml.nvmlDeviceSetMigMode(gpu(), 1) == pynvml.NVML_SUCCESS
    assert pynvml.nvmlDeviceGetMigMode(gpu()) == [1, 1]
    machine = on("a100x8")
    assert pynvml.nvmlDeviceSetMigMode(gpu(), 1) == pynvml.NVML_ERROR_RESET_REQUIRED
    assert pynvml.nvmlDeviceGetMigMode(gpu()) == [0, 1]
    with pytest.raises(pynvml.NVMLError_NotSupported):
        create(gpu(), 9)
    machine.reset(0)
    assert pynvml.nvmlDeviceGetMigMode(gpu()) == [1, 1]


def test_a_mode_change_waits_for_whoever_uses_the_gpu(on):
    machine = on("dgx-h100")
    machine.hold(0, pid=4711)
    assert pynvml.nvmlDeviceSetMigMode(gpu(), 1) == pynvml.NVML_ERROR_IN_USE
    assert pynvml.nvmlDeviceGetMigMode(gpu()) == [0, 1]
    machine.leave(4711)
    assert pynvml.nvmlDeviceSetMigMode(gpu(), 1) == pynvml.NVML_SUCCESS
    create(gpu(), H100["1g"])
    assert pynvml.nvmlDeviceSetMigMode(gpu(), 0) == pynvml.NVML_ERROR_IN_USE
    assert pynvml.nvmlDeviceGetMigMode(gpu()) == [1, 0]
    assert len(instances_of(gpu())) == 1


def test_a_gpu_that_cannot_be_split_says_so(on):
    on("l4x2")
    for call in (pynvml.nvmlDeviceGetMigMode, lambda one: pynvml.nvmlDeviceSetMigMode(one, 1)):
        with pytest.raises(pynvml.NVMLError_NotSupported):
            call(gpu())
    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu()) == 0
    assert profiles_of(gpu()) == {}


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


def test_processes_are_listed_on_the_gpu_and_on_the_part_they_use(on):
    machine = on()
    one = mig_gpu(machine)
    devices = [fill(create(one, H100["1g"], start))[1] for start in (0, 1)]
    machine.hold(0, 99, used_bytes=5 << 20, gpu_instance=2, compute=0)
    machine.hold(1, 98, used_bytes=7 << 20)
    machine.hold(2, 97, mps=True)
    [listed] = pynvml.nvmlDeviceGetComputeRunningProcesses(one)
    assert (listed.pid, listed.usedGpuMemory, listed.gpuInstanceId) == (99, 5 << 20, 2)
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(devices[0]) == []
    assert [p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(devices[1])] == [99]
    assert pynvml.nvmlDeviceGetMemoryInfo(devices[0]).used == 0
    assert pynvml.nvmlDeviceGetMemoryInfo(devices[1]).used == 5 << 20
    [whole] = pynvml.nvmlDeviceGetComputeRunningProcesses(gpu(1))
    assert (whole.pid, whole.gpuInstanceId, whole.computeInstanceId) == (98, NONE, NONE)
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(gpu(2)) == []
    assert [p.pid for p in pynvml.nvmlDeviceGetMPSComputeRunningProcesses(gpu(2))] == [97]


def test_a_real_process_lets_go_when_it_dies_before_anybody_waits_for_it(on):
    machine = on()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as holder:
        machine.hold(0, holder.pid, begun=hosts.began(holder.pid))
        assert len(pynvml.nvmlDeviceGetComputeRunningProcesses(gpu())) == 1
        with pytest.raises(InvalidStateError):
            machine.reset(0)
        holder.send_signal(signal.SIGKILL)
        until = time.monotonic() + 10
        while pynvml.nvmlDeviceGetComputeRunningProcesses(gpu()):
            assert time.monotonic() < until
        machine.reset(0)


def test_a_fault_strikes_the_calls_that_were_asked_for_and_no_other(on):
    machine = on()
    machine.fail("nvmlDeviceGetUUID", pynvml.NVML_ERROR_UNKNOWN, gpu=1, after=1, times=2)
    ends = []
    for _ in range(4):
        try:
            ends.append(pynvml.nvmlDeviceGetUUID(gpu(1))[:4])
        except pynvml.NVMLError as error:
            ends.append(error.value)
        pynvml.nvmlDeviceGetUUID(gpu(0))
    assert ends == ["GPU-", 999, 999, "GPU-"]
    assert machine.hits("nvmlDeviceGetUUID") == 2
    machine.heal()
    assert machine.hits("nvmlDeviceGetUUID") == 0


def test_the_compute_instance_can_fail_after_the_gpu_instance_exists(on):
    machine = on()
    one = mig_gpu(machine)
    machine.fail("nvmlGpuInstanceCreateComputeInstance", pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
    made = create(one, H100["3g"])
    with pytest.raises(pynvml.NVMLError_InsufficientResources):
        fill(made)
    assert len(instances_of(one)) == 1
    assert set(mig_devices(one)) == {None}
    fill(made)


def test_a_slow_call_keeps_nobody_else_waiting(on):
    machine = on()
    machine.fail("nvmlDeviceGetUUID", delay_ms=400)
    code = """
import pynvml, time
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
print("ready", flush=True)
pynvml.nvmlDeviceGetUUID(gpu)
print("told")
"""
    began = time.monotonic()
    process = child(machine, code)
    assert process.stdout.readline() == "ready\n"
    while machine.hits("nvmlDeviceGetUUID") == 0:
        assert time.monotonic() < began + 30
    began = time.monotonic()
    pynvml.nvmlDeviceGetUUID(gpu())
    assert time.monotonic() < began + 0.3
    assert process.communicate(timeout=30)[0] == "told\n"


@pytest.mark.parametrize(
    ("where", "made"), [(KILL_BEFORE, False), (KILL_WHILE, False), (KILL_AFTER, True)]
)
def test_a_caller_that_is_killed_in_a_call_has_made_its_change_or_has_not(on, where, made):
    machine = on()
    one = mig_gpu(machine)
    machine.fail("nvmlDeviceCreateGpuInstance", kill=where)
    code = """
import pynvml
pynvml.nvmlInit()
pynvml.nvmlDeviceCreateGpuInstance(pynvml.nvmlDeviceGetHandleByIndex(0), 9)
"""
    process = child(machine, code)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert instances_of(one) == ([(1, 9, 4, 4)] if made else [])
    create(one, H100["3g"], 0)


def test_a_lost_gpu_answers_nothing_until_the_machine_is_started_again(on):
    machine = on()
    one = gpu(2)
    machine.lose(2)
    for call in (lambda: gpu(2), lambda: pynvml.nvmlDeviceGetUUID(one)):
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            call()
    assert pynvml.nvmlDeviceGetCount() == 8
    pynvml.nvmlDeviceGetUUID(gpu(3))
    with pytest.raises(InvalidStateError):
        machine.reset(2)
    machine.reboot()
    pynvml.nvmlDeviceGetUUID(one)


def wait(events, milliseconds=0):
    data = pynvml.nvmlEventSetWait(events, milliseconds)
    number = pynvml.nvmlDeviceGetIndex(data.device)
    return number, data.eventType, data.eventData, data.gpuInstanceId, data.computeInstanceId


def test_critical_errors_are_told_to_who_registered_from_then_on(on):
    machine = on()
    machine.xid(0, 13)
    events = pynvml.nvmlEventSetCreate()
    for number in (0, 1):
        pynvml.nvmlDeviceRegisterEvents(gpu(number), pynvml.nvmlEventTypeXidCriticalError, events)
    with pytest.raises(pynvml.NVMLError_Timeout):
        wait(events)
    machine.xid(1, 94, gpu_instance=3, compute=0)
    machine.xid(2, 48)
    machine.xid(0, 79)
    assert wait(events) == (1, 8, 94, 3, 0)
    assert wait(events) == (0, 8, 79, NONE, NONE)
    with pytest.raises(pynvml.NVMLError_Timeout):
        wait(events, 20)
    pynvml.nvmlEventSetFree(events)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceRegisterEvents(gpu(), 1 << 40, pynvml.nvmlEventSetCreate())


def test_who_waits_is_woken_by_another_process_and_learns_of_foreign_instances(on):
    machine = on()
    one = mig_gpu(machine)
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(one, pynvml.nvmlEventMigConfigChange, events)
    code = """
import pynvml
pynvml.nvmlInit()
pynvml.nvmlDeviceCreateGpuInstance(pynvml.nvmlDeviceGetHandleByIndex(0), 9)
"""
    process = child(machine, code)
    assert wait(events, 30_000) == (0, 0x100, 0, 1, NONE)
    assert process.communicate(timeout=30) == ("", "")


def test_memory_errors_are_counted_and_the_row_is_remapped_at_the_reset(on):
    machine = on()
    total = pynvml.nvmlDeviceGetTotalEccErrors
    machine.uncorrectable_error(0)
    assert [total(gpu(), 1, since) for since in (0, 1)] == [1, 1]
    assert total(gpu(), 0, 0) == 0
    assert pynvml.nvmlDeviceGetRemappedRows(gpu()) == (0, 0, 1, 0)
    machine.reset(0)
    assert [total(gpu(), 1, since) for since in (0, 1)] == [0, 1]
    assert pynvml.nvmlDeviceGetRemappedRows(gpu()) == (0, 1, 0, 0)


def test_gpus_behind_switches_reach_all_others_and_pairs_only_each_other(on):
    def reached(number, count):
        status = [
            pynvml.nvmlDeviceGetP2PStatus(
                gpu(number), gpu(other), pynvml.NVML_P2P_CAPS_INDEX_NVLINK
            )
            for other in range(count)
            if other != number
        ]
        return status.count(pynvml.NVML_P2P_STATUS_OK)

    machine = on("dgx-h100")
    assert reached(0, 8) == 7
    kinds = {pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(gpu(), link) for link in range(18)}
    assert kinds == {pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH}
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetNvLinkState(gpu(), 18)
    mig_gpu(machine, 1)
    assert reached(0, 8) == 6
    assert pynvml.nvmlDeviceGetNvLinkState(gpu(1), 0) == 0
    on("a30x4")
    assert reached(0, 4) == 1
    remote = pynvml.nvmlDeviceGetNvLinkRemotePciInfo(gpu(0), 3).busId
    assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByPciBusId(remote)) == 1


def test_who_is_near_whom(on):
    on()
    level = pynvml.nvmlDeviceGetTopologyCommonAncestor
    assert [level(gpu(0), gpu(other)) for other in (0, 1, 2, 4)] == [0, 30, 40, 50]
    assert [list(pynvml.nvmlDeviceGetMemoryAffinity(gpu(n), 1, 0)) for n in (0, 7)] == [[1], [2]]


def test_exclusive_process_mode_is_not_there_in_mig_mode(on):
    machine = on()
    exclusive = pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
    pynvml.nvmlDeviceSetComputeMode(gpu(), exclusive)
    assert pynvml.nvmlDeviceGetComputeMode(gpu()) == exclusive
    one = mig_gpu(machine)
    _, device = fill(create(one, H100["1g"]))
    for target, mode in ((device, exclusive), (one, 0)):
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceSetComputeMode(target, mode)
    pynvml.nvmlDeviceSetComputeMode(device, pynvml.NVML_COMPUTEMODE_PROHIBITED)
    assert pynvml.nvmlDeviceGetComputeMode(device) == pynvml.NVML_COMPUTEMODE_PROHIBITED


@pytest.mark.parametrize(("kind", "kept"), [("a100x8", [1, 1]), ("dgx-h100", [0, 0])])
def test_a_reboot_takes_all_instances_and_the_mode_where_the_board_forgets_it(on, kind, kept):
    machine = on(kind)
    create(mig_gpu(machine), 9)
    machine.hold(1, 77)
    boot = (machine.root / "proc/sys/kernel/random/boot_id").read_text()
    minors = (machine.root / "proc/driver/nvidia-caps/mig-minors").read_text()
    machine.reboot()
    assert pynvml.nvmlDeviceGetMigMode(gpu()) == kept
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(gpu(1)) == []
    pynvml.nvmlDeviceSetMigMode(gpu(), 1)
    assert instances_of(gpu()) == []
    assert (machine.root / "proc/sys/kernel/random/boot_id").read_text() != boot
    assert (machine.root / "proc/driver/nvidia-caps/mig-minors").read_text() != minors


def smi(machine, *arguments):
    program = machine.folder / "bin" / "nvidia-smi"
    done = subprocess.run(
        [program, *arguments],
        env=dict(machine.environment()),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_nvidia_smi_resets_a_gpu_that_nobody_uses(on):
    machine = on("a100x8")
    pynvml.nvmlDeviceSetMigMode(gpu(), 1)
    uuid = pynvml.nvmlDeviceGetUUID(gpu())
    machine.hold(0, 55)
    code, said = smi(machine, "--gpu-reset", "-i", uuid)
    assert (code, "In use by another client" in said) == (255, True)
    machine.leave(55)
    machine.fail("nvidia-smi --gpu-reset", pynvml.NVML_ERROR_IN_USE)
    assert smi(machine, "--gpu-reset", "-i", uuid)[0] == 255
    assert pynvml.nvmlDeviceGetMigMode(gpu()) == [0, 1]
    code, said = smi(machine, "--gpu-reset", "-i", uuid)
    assert (code, said) == (0, "GPU 00000000:1B:00.0 was successfully reset.\nAll done.\n")
    assert pynvml.nvmlDeviceGetMigMode(gpu()) == [1, 1]
    assert smi(machine, "--gpu-reset", "-i", "GPU-none")[0] == 6
    assert smi(machine, "compute-policy", "-i", uuid, "--set-timeslice", "2")[0] == 0
    assert machine.read().gpus[0].time_slice == 2


def test_a_change_that_raises_leaves_the_machine_as_it_was(on):
    machine = on()
    with contextlib.suppress(ZeroDivisionError), machine.change() as changed:
        changed.gpus[0].lost = 1
        changed.gpus[0].memory_mib //= 0
    pynvml.nvmlDeviceGetUUID(gpu())


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


def test_an_unknown_machine_is_refused_by_name(tmp_path):
    with pytest.raises(InvalidInputError, match="dgx-h100"):
        Simulation.create(tmp_path, "dgx-1")


def test_the_library_is_built_once_and_a_compiler_that_refuses_is_named(tmp_path, monkeypatch):
    assert build_library(tmp_path / "a") == build_library(tmp_path / "a")
    assert [path.name for path in (tmp_path / "a").iterdir()] == [
        build_library(tmp_path / "a").name
    ]
    monkeypatch.setenv("CC", "false --very")
    with pytest.raises(UnavailableError, match="cannot be built") as refused:
        build_library(tmp_path / "b")
    assert refused.value.details["compiler"] == "false --very"
    assert list((tmp_path / "b").iterdir()) == []
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UnavailableError, match="need a C compiler"):
        build_library(tmp_path / "b")


@pytest.mark.slow
def test_the_ziglang_package_builds_it_where_there_is_no_compiler(tmp_path, monkeypatch):
    pytest.importorskip("ziglang")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    folder = build_library(tmp_path / "cache")
    assert ctypes.CDLL(str(folder / "libnvidia-ml.so.1")).nvmlShutdown() == 1
