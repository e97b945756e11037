"""`nvidia-smi -L` of a simulated machine: what whoever has got a GPU types first."""

import subprocess

import pynvml
from nvml_world import H100, create, gpu


def test_gpus_and_instances_are_listed_as_the_vendor_writes_them(on):
    machine = on("dgx-h100")
    pynvml.nvmlDeviceSetMigMode(gpu(1), 1)
    for profile in ("3g", "1g"):
        instance = create(gpu(1), H100[profile])
        pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0 if profile == "1g" else 2)
    done = subprocess.run(
        [machine.folder / "bin" / "nvidia-smi", "-L"],
        env=dict(machine.environment()),
        capture_output=True,
        text=True,
        check=True,
    )
    uuids = [pynvml.nvmlDeviceGetUUID(gpu(at)) for at in range(8)]
    migs = [pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu(1), at) for at in range(2)]
    lines = done.stdout.splitlines()
    assert lines[0] == f"GPU 0: NVIDIA H100 80GB HBM3 (UUID: {uuids[0]})"
    assert lines[1] == f"GPU 1: NVIDIA H100 80GB HBM3 (UUID: {uuids[1]})"
    told = {line.partition("(UUID: ")[2]: line[:27] for line in lines[2:4]}
    assert {f"{pynvml.nvmlDeviceGetUUID(mig)})" for mig in migs} == set(told)
    assert sorted(told.values()) == ["  MIG 1g.10gb     Device  1", "  MIG 3g.40gb     Device  0"]
    assert len(lines) == 10
