"""Faults strike the simulated driver's callers, who are told of them as NVML tells them."""

import signal
import time

import pynvml
import pytest
from nvml_world import H100, NONE, child, create, fill, gpu, instances_of, mig_devices, mig_gpu

from apportion.errors import InvalidStateError
from apportion.testing.nvml import KILL_AFTER, KILL_BEFORE, KILL_WHILE


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
    machine.fail("nvmlDeviceGetUUID", delay_ms=2000)
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
    pynvml.nvmlDeviceGetUUID(gpu())
    assert process.poll() is None, "it has come to its end before us"
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
