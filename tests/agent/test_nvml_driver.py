"""The simulated driver does what NVML documents, through the unmodified binding."""

import contextlib
import ctypes
import signal
import subprocess
import sys
import time

import pynvml
import pytest
from nvml_world import H100, NONE, child, create, fill, gpu, instances_of, mig_gpu, profiles_of

from apportion.errors import InvalidInputError, InvalidStateError, UnavailableError
from apportion.testing.nvml import MACHINES, Simulation, build_library, hosts


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
