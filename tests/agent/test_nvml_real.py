"""What only reads runs the same against the simulated driver and against a real one that is here.

Nothing here changes a GPU: machines with real ones are shared.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from apportion.nodes.schemas import Inventory
from apportion.testing.nvml import Simulation

SOURCE = Path(__file__).parents[2] / "src" / "apportion"
UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"


def agent(environment, *arguments):
    done = subprocess.run(
        [sys.executable, "-m", "apportion", "agent", *arguments, "-o", "json"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


@pytest.fixture(params=["dgx-h100", "mixed", "this machine"])
def environment(request, tmp_path):
    if request.param != "this machine":
        machine = Simulation.create(tmp_path / "m", request.param)
        return {**os.environ, **machine.environment()}
    plain = {
        name: value
        for name, value in os.environ.items()
        if name not in {"APPORTION_NVML_STATE", "APPORTION_HOST_ROOT"}
    }
    _, document = agent(plain, "inventory")
    if document["driver"] is None:
        pytest.skip(f"no driver on this machine: {document['problems'][0]}")
    return plain


def test_every_gpu_says_who_it_is_and_what_it_can_be_cut_into(environment):
    code, document = agent(environment, "inventory")
    assert code == 0
    Inventory.model_validate_json(json.dumps(document))
    assert document["gpus"]
    tables = {row["product"]: row["profiles"] for row in document["mig_profiles"]}
    for gpu in document["gpus"]:
        assert re.fullmatch(f"GPU-{UUID}", gpu["uuid"])
        assert re.fullmatch(r"[0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.0", gpu["pci_address"])
        assert re.fullmatch(r"0x[0-9A-F]{4}", gpu["pci_device_id"])
        assert gpu["memory_mib"] > 1000
        profiles = tables.get(gpu["product"], [])
        names = {profile["name"] for profile in profiles}
        places = {
            (profile["name"], place["start"], place["size"])
            for profile in profiles
            for place in profile["placements"]
        }
        assert len({profile["id"] for profile in profiles}) == len(profiles) == len(names)
        for row in gpu["mig"]["instances"]:
            whole = row["profile"].rpartition("c.")[2]
            assert (whole, row["start"], row["size"]) in places


def test_two_looks_at_a_machine_that_nobody_changes_say_the_same(environment):
    def steady():
        _, document = agent(environment, "inventory")
        for gpu in document["gpus"]:
            gpu.pop("processes")
            gpu.pop("memory_health")
        return document

    assert steady() == steady()


def test_the_check_says_whether_the_machine_is_as_it_should_be(environment):
    code, result = agent(environment, "diag")
    assert code == (0 if result["passed"] else 1)
    assert result["passed"] == (result["details"] == [])


def test_one_module_knows_the_binding():
    """But for the simulated machine's `nvidia-smi`, which is a program of its own."""
    knowing = [
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if "pynvml" in path.read_text("utf-8")
    ]
    assert sorted(knowing) == ["agent/nvml/calls.py", "testing/nvml/smi.py"]
