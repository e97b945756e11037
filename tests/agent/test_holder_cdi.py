"""What is handed out is taken by others' unmodified programs: CDI's own library, and NVML."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from holder_world import HolderNode, gi_of

from apportion.agent.nvml import open_driver

GO_PATH = Path("/usr/share/gocode")
LIBRARY = GO_PATH / "src/github.com/container-orchestrated-devices/container-device-interface"
SELECTED = """
import os, pynvml
pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByUUID(os.environ["CUDA_VISIBLE_DEVICES"])
parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
print(pynvml.nvmlDeviceGetUUID(parent), pynvml.nvmlDeviceGetGpuInstanceId(device))
"""


@pytest.fixture
def node(on, tmp_path):
    with ExitStack() as stack:
        yield HolderNode(on("dgx-h100"), stack.enter_context(open_driver()), tmp_path)


@pytest.fixture(scope="module")
def consumer(tmp_path_factory):
    """Build a program that does with a CDI spec what container runtimes do, with their library."""
    if shutil.which("go") is None or not LIBRARY.exists():
        missing = (
            "needs Debian's golang-go and"
            " golang-github-container-orchestrated-devices-container-device-interface-dev"
        )
        # The gate installs them: there a skip would be a hole.
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing)
    folder = tmp_path_factory.mktemp("consumer")
    program = folder / "consumer"
    source = Path(__file__).parent / "cdi_consumer" / "main.go"
    subprocess.run(
        ["go", "build", "-o", str(program), str(source)],
        env={**os.environ, "GO111MODULE": "off", "GOPATH": str(GO_PATH)},
        check=True,
    )
    return program


@pytest.fixture
def program(node):
    """Give a function that runs a program built as with CUDA, in an allocation's environment."""
    with ExitStack() as stack:

        def start(name):
            process = subprocess.Popen(
                [sys.executable, "-m", "apportion.testing.nvml.program", "--mib", "100"],
                env={**os.environ, **node.machine.environment(), **node.env(name)},
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process.pid, process.stdout.readline().strip()

        yield start


def inject(consumer, node, *names):
    done = subprocess.run(
        [str(consumer), str(node.cdi), *(f"apportion.io/gpu={name}" for name in names)],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout and json.loads(done.stdout), done.stderr


def paths(oci):
    return {(each["path"], each["major"], each["minor"]) for each in oci["linux"]["devices"]}


def test_cdi_s_own_library_gives_a_container_its_instance_alone(node, consumer):
    node.mig()
    uuid = node.make("3g.40gb", 4)
    node.make("1g.10gb", 0)
    node.ask_mig("res_01k.0", "3g.40gb", 4)
    node.ask_mig("res_01m.0", "1g.10gb", 0)
    assert node.converge().done
    code, oci, said = inject(consumer, node, "res_01k.0")
    assert (code, said) == (0, "")
    controls = {("/dev/nvidiactl", 195, 255)}
    assert paths(oci) == {*node.nodes("res_01k.0"), *controls}
    assert f"CUDA_VISIBLE_DEVICES={uuid}" in oci["process"]["env"]
    allowed = {(each["major"], each["minor"]) for each in oci["linux"]["resources"]["devices"]}
    assert allowed == {(major, minor) for _, major, minor in paths(oci)}
    code, oci, _ = inject(consumer, node, "res_01k.0", "res_01m.0")
    both = {*node.nodes("res_01k.0"), *node.nodes("res_01m.0"), *controls}
    assert (code, paths(oci)) == (0, both)


def test_cdi_s_own_library_gives_a_slot_its_pipe_and_a_whole_gpu_its_node(node, consumer):
    node.shared[node.uuids[0]] = "mps"
    node.ask("slot.0", "gpu.slot", share="1/4", slots=[0])
    node.ask("whole.0", gpu=1)
    assert node.converge().done
    code, oci, said = inject(consumer, node, "slot.0")
    assert (code, said) == (0, "")
    [mount] = oci["mounts"]
    pipe = node.env("slot.0")["CUDA_MPS_PIPE_DIRECTORY"]
    assert (mount["source"], mount["destination"]) == (pipe, pipe)
    code, oci, _ = inject(consumer, node, "whole.0")
    assert (code, paths(oci)) == (0, {("/dev/nvidia1", 195, 1), ("/dev/nvidiactl", 195, 255)})


def test_what_was_taken_back_is_no_device_any_more(node, consumer):
    node.ask("r.0")
    node.converge()
    node.rows.clear()
    node.converge()
    code, _, said = inject(consumer, node, "r.0")
    assert (code, "unresolvable" in said) == (1, True)


@pytest.mark.parametrize(
    "broken",
    [
        lambda spec: spec.update(cdiVersion="9.9.9"),
        lambda spec: spec.update(kind="apportion"),
        lambda spec: spec["devices"][0].update(name="of course not"),
        lambda spec: spec["devices"][0]["containerEdits"]["deviceNodes"][0].update(path=""),
        lambda spec: spec["devices"][0]["containerEdits"]["env"].append("without a value"),
        lambda spec: spec.update(devises=spec.pop("devices")),
    ],
    ids=["version", "kind", "name", "path", "env", "field"],
)
def test_cdi_s_own_library_refuses_what_is_none(node, consumer, broken):
    node.ask("r.0")
    assert node.converge().done
    assert inject(consumer, node, "r.0")[0] == 0
    [path] = node.cdi.iterdir()
    spec = node.spec("r.0")
    broken(spec)
    path.write_text(json.dumps(spec))
    code, _, said = inject(consumer, node, "r.0")
    assert (code, said != "") == (1, True)


def test_the_environment_selects_the_instance_in_the_driver(node):
    node.mig()
    node.make("3g.40gb", 0)
    node.make("3g.40gb", 4)
    node.ask_mig("r.0", "3g.40gb", 4)
    node.converge()
    done = subprocess.run(
        [sys.executable, "-c", SELECTED],
        env={**os.environ, **node.machine.environment(), **node.env("r.0")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [node.uuids[0], str(gi_of(node, 4))]


def test_a_program_gets_what_its_environment_names_and_the_driver_lists_it_there(node, program):
    node.mig()
    part = node.make("3g.40gb", 4)
    node.shared[node.uuids[2]] = "timeslice"
    node.ask_mig("part.0", "3g.40gb", 4)
    node.ask("whole.0", gpu=1)
    node.ask("slot.0", "gpu.slot", gpu=2, share="1/4", slots=[3])
    assert node.converge().done
    for name, device, gpu in (
        ("part.0", part, 0),
        ("whole.0", node.uuids[1], 1),
        ("slot.0", node.uuids[2], 2),
    ):
        pid, seen = program(name)
        assert seen == device
        [found] = node.driver.processes(node.uuids[gpu])
        assert found.pid == pid
        assert found.gi_id == (gi_of(node, 4) if name == "part.0" else None)
