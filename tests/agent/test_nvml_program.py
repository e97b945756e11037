"""A program that stands for one built with CUDA sees the device that it is given, and no other."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack

import pynvml
import pytest
from nvml_world import create, fill, mig_devices


@pytest.fixture
def start():
    """Give a function that runs the program on a machine; all are killed at the end."""
    with ExitStack() as stack:

        def run(machine, *arguments, **environment):
            process = subprocess.Popen(
                [sys.executable, "-m", "apportion.testing.nvml.program", *arguments],
                env={**os.environ, **machine.environment(), **environment},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield run


def device_of(process):
    return process.stdout.readline().strip()


def gpus(count=8):
    handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(count)]
    return handles, [pynvml.nvmlDeviceGetUUID(handle) for handle in handles]


def test_a_program_runs_on_the_device_that_its_environment_names(on, start):
    machine = on()
    handles, uuids = gpus()
    pynvml.nvmlDeviceSetMigMode(handles[1], 1)
    for place in (0, 1):
        fill(create(handles[1], 19, place))
    first, second = mig_devices(handles[1])[:2]
    for names, got in (
        (uuids[3], uuids[3]),
        (f"{uuids[3]},{uuids[0]}", uuids[3]),
        ("2", second),  # numbers count devices: GPU 1 is in two parts
        (second, second),
        (second[:20], second),
        (f"{first},{second}", first),
        (f"{uuids[0]},nonsense,{uuids[2]}", uuids[0]),
    ):
        process = start(machine, CUDA_VISIBLE_DEVICES=names)
        assert device_of(process) == got, names
    for names in ("", "MIG-", uuids[1], "99", "nonsense"):
        process = start(machine, CUDA_VISIBLE_DEVICES=names)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out) == (1, ""), names
        assert err == "CUDA error: no CUDA-capable device is detected\n"


def test_it_is_seen_there_and_keeps_the_instance_until_it_ends(on, start):
    machine = on()
    [gpu], _ = gpus(1)
    pynvml.nvmlDeviceSetMigMode(gpu, 1)
    made = create(gpu, 9, 4)
    compute, device = fill(made)
    uuid = pynvml.nvmlDeviceGetUUID(device)
    process = start(machine, "--mib", "1000", CUDA_VISIBLE_DEVICES=uuid)
    assert device_of(process) == uuid
    [seen] = pynvml.nvmlDeviceGetComputeRunningProcesses(device)
    assert (seen.pid, seen.usedGpuMemory) == (process.pid, 1000 << 20)
    with pytest.raises(pynvml.NVMLError_InUse):
        pynvml.nvmlComputeInstanceDestroy(compute)
    process.terminate()
    assert process.wait(60) == 0
    pynvml.nvmlComputeInstanceDestroy(compute)


def test_one_that_does_not_want_to_end_has_to_be_killed(on, start):
    machine = on()
    process = start(machine, "--stubborn")
    assert device_of(process)
    process.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    process.kill()
    assert process.wait(60) == -signal.SIGKILL


def test_memory_and_the_compute_mode_refuse_who_does_not_fit(on, start, tmp_path):
    machine = on()
    [gpu], [uuid] = gpus(1)
    first = start(machine, "--mib", "60000", CUDA_VISIBLE_DEVICES=uuid)
    assert device_of(first) == uuid
    second = start(machine, "--mib", "30000", CUDA_VISIBLE_DEVICES=uuid)
    assert second.communicate(timeout=60) == ("", "CUDA error: out of memory\n")
    pynvml.nvmlDeviceSetComputeMode(gpu, pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
    third = start(machine, CUDA_VISIBLE_DEVICES=uuid)
    assert third.wait(60) == 2
    (tmp_path / "control").touch()
    client = start(machine, CUDA_VISIBLE_DEVICES=uuid, CUDA_MPS_PIPE_DIRECTORY=str(tmp_path))
    assert device_of(client) == uuid
    assert [p.pid for p in pynvml.nvmlDeviceGetMPSComputeRunningProcesses(gpu)] == [client.pid]
    first.kill()
    first.wait()
    client.kill()
    client.wait()
    fourth = start(machine, CUDA_VISIBLE_DEVICES=uuid)
    assert device_of(fourth) == uuid
    fourth.kill()
    fourth.wait()
    pynvml.nvmlDeviceSetComputeMode(gpu, pynvml.NVML_COMPUTEMODE_PROHIBITED)
    assert start(machine, CUDA_VISIBLE_DEVICES=uuid).wait(60) == 2
