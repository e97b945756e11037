"""The inventory document says what there is, and the server takes it."""

import json
import os
import shutil

import pynvml
import pytest
from inventory_world import checked, gpus_of
from nvml_world import child

from apportion.agent import acceptance
from apportion.agent.acceptance import register_check, run_check
from apportion.agent.host import host_root, numa_node, pcie_root, read_host
from apportion.agent.inventory import Made, health
from apportion.agent.looking import look
from apportion.errors import InvalidInputError, UnavailableError
from apportion.geometry import board_by_key
from apportion.testing.nvml import MACHINES, Simulation


@pytest.mark.parametrize("kind", MACHINES)
def test_a_machine_that_was_never_used_is_told_whole(agent, kind):
    document = agent(kind).document()
    machine = MACHINES[kind]
    assert health(document) == ("healthy", None)
    assert document["host"] == {
        "logical_cpus": machine.logical_cpus,
        "memory_mib": machine.memory_mib,
        "hugepages": {"2Mi": 0, "1Gi": 0},
    }
    assert document["driver"] == {"driver": "580.95.05", "cuda": "13.0", "nvml": "13.580.95.05"}
    assert [gpu["product"] for gpu in document["gpus"]] == [each.name for each in machine.models]
    for index, gpu in gpus_of(document).items():
        assert gpu["memory_mib"] == machine.models[index].memory_mib
        assert gpu["minor"] == index
        assert gpu["pcie_root"] == f"pci0000:{0x16 + 0x20 * (index // 2):02x}"
        assert gpu["numa_node"] == index * machine.numa_nodes // len(machine.models)
        assert gpu["mig"] == {"current": False, "pending": False, "instances": []}
        assert (gpu["differences"], gpu["xids"], gpu["processes"]) == ([], [], [])
        assert gpu["failed"] is None


def test_profiles_are_those_that_the_driver_reports_once_for_each_product(agent):
    one = agent("mixed")
    for index in (0, 1):  # Ampere says nothing of profiles while the mode is off
        one.machine.reset(index)
    before = {row["product"] for row in one.document()["mig_profiles"]}
    assert before == {
        "NVIDIA H100 80GB HBM3",
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    }
    with one.machine.another_driver() as boards:
        h100 = next(row for row in boards if b"H100" in row.name)
        h100.profiles[0].memory_mib = 9000
    one = one.restarted()
    rows = {row["product"]: row["profiles"] for row in one.document()["mig_profiles"]}
    told = {profile["name"]: profile for profile in rows["NVIDIA H100 80GB HBM3"]}
    assert told["1g.10gb"]["memory_mib"] == 9000
    assert told["3g.40gb"]["placements"] == [{"start": 0, "size": 4}, {"start": 4, "size": 4}]
    assert told["3g.40gb"]["id"] == 9
    assert sorted(told) == sorted(each.name for each in board_by_key("h100-sxm5-80gb").profiles)
    one.stop()


def test_instances_are_listed_with_their_places_half_made_and_divided_ones_too(agent):
    one = agent()
    [device] = one.mig(0, ("3g.40gb", 4))
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    half = pynvml.nvmlDeviceCreateGpuInstance(gpu, 14)
    pynvml.nvmlGpuInstanceCreateComputeInstance(half, 0)
    pynvml.nvmlDeviceCreateGpuInstance(gpu, 19)
    found = one.document(
        made=lambda _, each: Made(allocation_id="a1") if each.gi_id == 1 else None
    )["gpus"][0]["mig"]
    assert (found["current"], found["pending"]) == (True, True)
    full, divided, bare = sorted(found["instances"], key=lambda each: -each["start"])
    assert full == {
        "gi_id": 1,
        "ci_id": 0,
        "uuid": device,
        "profile": "3g.40gb",
        "start": 4,
        "size": 4,
        "memory_mib": 40448,
        "sm_count": 60,
        "failed": None,
        "managed": True,
        "allocation_id": "a1",
    }
    assert (divided["profile"], divided["sm_count"], divided["managed"]) == (
        "1c.2g.20gb",
        16,
        False,
    )
    assert (bare["ci_id"], bare["uuid"], bare["profile"], bare["start"]) == (
        None,
        None,
        "1g.10gb",
        1,
    )


@pytest.mark.parametrize(("kind", "peers"), [("dgx-h100", 7), ("a30x4", 1), ("mixed", 0)])
def test_links_are_counted_to_each_gpu_that_they_lead_to(agent, kind, peers):
    one = agent(kind)
    gpus = gpus_of(one.document())
    links = MACHINES[kind].links
    for gpu in gpus.values():
        assert [each["links"] for each in gpu["nvlink"]] == [links] * peers
        assert gpu["uuid"] not in {each["peer"] for each in gpu["nvlink"]}
    if kind == "a30x4":
        assert gpus[2]["nvlink"][0]["peer"] == gpus[3]["uuid"]
    if kind == "dgx-h100":
        one.mig(0)  # MIG mode takes its links away, and nobody else's
        gpus = gpus_of(one.document())
        assert [len(gpus[index]["nvlink"]) for index in (0, 1)] == [0, 6]


def test_processes_are_told_with_what_they_use(agent):
    one = agent()
    one.mig(0, ("1g.10gb", 0))
    one.machine.hold(0, 11, gpu_instance=1, compute=0)
    one.machine.hold(1, 12, used_bytes=1 << 30, mps=True)
    gpus = gpus_of(one.document())
    assert gpus[0]["processes"] == [{"pid": 11, "gi_id": 1, "ci_id": 0, "mps": False}]
    assert gpus[1]["processes"] == [{"pid": 12, "gi_id": None, "ci_id": None, "mps": True}]


def test_an_unchanged_machine_is_told_in_the_same_words(agent):
    one = agent()
    one.mig(0, ("1g.10gb", 0))
    one.machine.xid(0, 13)
    assert json.dumps(one.document()) == json.dumps(one.document())


def test_where_the_driver_says_otherwise_than_the_table_each_figure_is_told(agent):
    one = agent()
    with one.machine.another_driver() as boards:
        rows = boards[0].profiles
        rows[0].memory_mib = 9800  # a driver keeps a little: no difference
        rows[4].id = 99
        rows[4].multiprocessors = 58
        rows[4].placement_count = 1
        rows[6].name = b"7g.79gb"
    one = one.restarted()
    document = one.document()
    told = [tuple(each.values()) for each in document["gpus"][0]["differences"]]
    assert told == [
        ("7g.79gb", "profile", "has it", "not known"),
        ("7g.80gb", "profile", "not there", "has it"),
        ("3g.40gb", "id", "99", "9"),
        ("3g.40gb", "sm_count", "58", "60"),
        ("3g.40gb", "placements", "0:4", "0:4 4:4"),
    ]
    result = run_check("diag.nvml", document)
    assert not result.passed
    assert len(result.details) == 8 * len(told)
    uuid = document["gpus"][0]["uuid"]
    assert result.details[2] == (
        f"GPU 0 ({uuid}): 3g.40gb: id is 99 by the driver, and 9 by the table of boards"
    )
    one.stop()


def test_a_board_that_nobody_knows_is_a_difference_itself(agent):
    one = agent()
    with one.machine.another_driver() as boards:
        boards[0].name = b"NVIDIA X900"
    with one.machine.change() as machine:
        for gpu in machine.gpus:
            gpu.pci_device_id = 0x111110DE
    one = one.restarted()
    [found] = one.document()["gpus"][0]["differences"]
    assert (found["profile"], found["figure"], found["package"]) == (None, "board", "not known")
    one.stop()


def test_a_machine_passes_or_says_all_that_is_wrong(agent):
    one = agent()
    passed = run_check("diag.nvml", one.document())
    assert (passed.passed, passed.details) == (True, ())
    one.mig(2, ("1g.10gb", 0))
    one.machine.uncorrectable_error(0)
    one.machine.xid(1, 79)
    one.machine.xid(2, 94, gpu_instance=1, compute=0)
    with one.machine.change() as machine:
        machine.gpus[3].memory_mib = 40000
    one.machine.lose(4)
    document = one.document()
    uuids = {index: gpu["uuid"] for index, gpu in gpus_of(document).items()}
    device = gpus_of(document)[2]["mig"]["instances"][0]["uuid"]
    failed = run_check("diag.nvml", document)
    assert failed.details == (
        "GPU 4 does not answer: gpu_lost",
        f"GPU 0 ({uuids[0]}): memory is to be taken out of use at the next reset",
        f"GPU 1 ({uuids[1]}): xid 79",
        f"GPU 2 ({uuids[2]}): {device}: xid 94",
        f"GPU 3 ({uuids[3]}): has 40000 MiB of memory, and should have 81559",
        f"GPU 4 ({uuids[4]}): gpu_lost",
    )


def test_a_document_that_somebody_wrote_by_hand_passes_no_check_of_the_driver():
    result = run_check("diag.nvml", {"gpus": [{"index": 0, "uuid": "GPU-1"}]})
    assert result.details == ("no driver has said what is there",)


def test_checks_are_a_registry(monkeypatch):
    monkeypatch.setattr(acceptance, "_CHECKS", dict(acceptance._CHECKS))
    register_check(
        "diag.fans",
        lambda document, step: [f"{len(document['gpus'])} of {step['fans']} fans"],
    )
    result = run_check("diag.fans", {"gpus": []}, {"kind": "diag.fans", "fans": 2})
    assert (result.check, result.passed, result.details) == ("diag.fans", False, ("0 of 2 fans",))
    with pytest.raises(InvalidInputError, match=r"diag\.nvml"):
        run_check("diag.none", {})


def test_the_host_is_read_as_the_kernel_writes_it(tmp_path):
    machine = Simulation.create(tmp_path / "m", "a30x4")
    root = machine.root
    (root / "sys/devices/system/cpu/online").write_text("0-3,8,10-11\n")
    (root / "sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages").write_text("12\n")
    shutil.rmtree(root / "sys/kernel/mm/hugepages/hugepages-2048kB")
    host = read_host(root)
    assert (host.logical_cpus, host.hugepages) == (7, {"2Mi": 0, "1Gi": 12})
    assert pcie_root(root, "00000000:2B:00.0") == "pci0000:16"
    assert pcie_root(root, "00000000:FF:00.0") is None
    assert numa_node(root, "00000000:FF:00.0") is None
    (root / "proc/meminfo").write_text("MemFree: 1 kB\n")
    with pytest.raises(OSError, match="MemTotal"):
        read_host(root)


def test_the_real_kernel_is_read_too(monkeypatch):
    monkeypatch.delenv("APPORTION_HOST_ROOT", raising=False)
    host = read_host(host_root())
    assert host.logical_cpus >= 1
    assert host.memory_mib > 100
    assert len(host.boot_id) == 36


def test_a_machine_that_says_nothing_of_itself_is_an_error_that_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("APPORTION_HOST_ROOT", str(tmp_path))
    with pytest.raises(UnavailableError, match="cannot be read"):
        look("n1")


def command(machine, *arguments):
    code = f"from apportion.cli import main; raise SystemExit(main({list(arguments)!r}))"
    process = child(machine, code)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_the_command_line_prints_what_an_agent_would_report(tmp_path):
    machine = Simulation.create(tmp_path / "m", "mixed")
    code, out, err = command(machine, "agent", "inventory", "--node", "n1", "-o", "json")
    document = checked(json.loads(out))
    assert (code, err, document["node"], len(document["gpus"])) == (0, "", "n1", 4)
    code, out, err = command(machine, "agent", "inventory", "--node", "n1")
    assert (code, err) == (0, "")
    assert out.splitlines()[:3] == [
        "n1: healthy",
        "128 CPUs, 524288 MiB of memory",
        "driver 580.95.05, CUDA 13.0",
    ]
    assert "NVIDIA A100-SXM4-40GB" in out


def test_the_command_line_checks_and_exits_by_what_it_finds(tmp_path):
    machine = Simulation.create(tmp_path / "m", "a30x4")
    assert command(machine, "agent", "diag") == (0, "diag.nvml: passed, 4 GPUs\n", "")
    machine.uncorrectable_error(1)
    code, out, _ = command(machine, "agent", "diag", "-o", "json")
    found = json.loads(out)
    assert (code, found["check"], found["passed"]) == (1, "diag.nvml", False)
    assert len(found["details"]) == 1
    code, out, _ = command(machine, "agent", "diag")
    assert out.splitlines()[0] == "diag.nvml: not passed"
    assert command(machine, "agent", "diag", "--check", "x")[0] == 2
    assert os.environ.get("APPORTION_NVML_STATE") is None
