"""Processes that change one machine at once, and are killed at any moment, leave it whole."""

import random
import time

import pynvml
from nvml_world import child, create, instances_of, mig_devices

CHURN = """
import random, sys, pynvml
random.seed(int(sys.stdin.readline()))
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
print("ready", flush=True)
while True:
    try:
        made = pynvml.nvmlDeviceCreateGpuInstance(gpu, random.choice([19, 15, 14, 9, 5]))
        compute = pynvml.nvmlGpuInstanceCreateComputeInstance(made, 0)
    except pynvml.NVMLError_InsufficientResources:
        continue
    if random.random() < 0.8:
        pynvml.nvmlComputeInstanceDestroy(compute)
        pynvml.nvmlGpuInstanceDestroy(made)
"""


def overlapping(instances):
    taken = [slot for _, _, start, size in instances for slot in range(start, start + size)]
    return len(taken) != len(set(taken))


def clear(machine, gpu):
    """Take away whatever killed processes left, as a restarted agent would."""
    for number, *_ in instances_of(gpu):
        handle = pynvml.nvmlDeviceGetGpuInstanceById(gpu, number)
        for compute in range(8):
            try:
                one = pynvml.nvmlGpuInstanceGetComputeInstanceById(handle, compute)
            except pynvml.NVMLError_NotFound:
                continue
            pynvml.nvmlComputeInstanceDestroy(one)
        pynvml.nvmlGpuInstanceDestroy(handle)


def test_killed_at_any_moment_the_next_process_finds_a_whole_machine_and_no_lock(on):
    machine = on()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlDeviceSetMigMode(gpu, 1)
    left = 0
    for _ in range(8):
        processes = [child(machine, CHURN, stdin=-1) for _ in range(3)]
        for process in processes:
            process.stdin.write(f"{random.randrange(2**32)}\n")  # pytest-randomly has seeded it
            process.stdin.flush()
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        time.sleep(random.random() / 10)
        for process in processes:
            process.kill()
            process.communicate()
            assert not overlapping(instances_of(gpu))
        uuids = [uuid for uuid in mig_devices(gpu) if uuid]
        assert len(uuids) == len(set(uuids))
        left += len(instances_of(gpu))
        clear(machine, gpu)
        assert instances_of(gpu) == []
        pynvml.nvmlGpuInstanceDestroy(create(gpu, 0))
    assert left > 0


def test_of_many_that_want_the_same_places_each_place_goes_to_one(on):
    machine = on()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlDeviceSetMigMode(gpu, 1)
    code = """
import pynvml
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
print("ready", flush=True)
input()
made = 0
for _ in range(7):
    try:
        pynvml.nvmlDeviceCreateGpuInstance(gpu, 19)
        made += 1
    except pynvml.NVMLError_InsufficientResources:
        pass
print(made)
"""
    processes = [child(machine, code, stdin=-1) for _ in range(4)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    assert sum(int(process.communicate(timeout=30)[0]) for process in processes) == 7
    found = instances_of(gpu)
    assert [number for number, *_ in found] == list(range(1, 8))
    assert not overlapping(found)
