"""What the policy asks of a host and nobody here changes: compared, and told honestly."""

import json
import os
import sys
from contextlib import ExitStack
from datetime import timedelta

import pytest
from host_world import NOW, compared, sendable

from apportion.agent.hosting import gpu_unit, host_units
from apportion.agent.nvml import open_driver
from apportion.agent.units import Mismatch


def test_a_host_that_is_set_up_as_asked_differs_in_nothing(root):
    wanted = {"isolated": "2-5,8", "governor": "performance", "smt": True}
    (root / "sys/devices/system/cpu/isolated").write_text("2,3-5,8\n")
    assert compared(root, "cpu", wanted).done
    assert compared(root, "cpu", None).done
    assert compared(root, "iommu", {"mode": "off"}).done


def test_what_differs_is_told_field_by_field(root):
    folder = root / "sys/devices/system/cpu"
    (folder / "cpufreq/policy0/scaling_governor").write_text("powersave\n")
    wanted = {"isolated": "2-5", "governor": "performance", "smt": False}
    outcome = compared(root, "cpu", wanted)
    assert (outcome.done, outcome.reason) == (False, "cpu_differs")
    assert outcome.mismatches == (
        Mismatch(field="isolated", wanted="2-5", found="none"),
        Mismatch(field="governor", wanted="performance", found="powersave (1 of 2)"),
        Mismatch(field="smt", wanted="off", found="on"),
    )
    assert outcome.message.startswith("isolated is to be 2-5, and it is none; governor is to be")


def test_what_the_kernel_does_not_say_is_unknown_and_not_equal(root):
    folder = root / "sys/devices/system/cpu"
    for file in (
        "isolated",
        "smt/active",
        *(f"cpufreq/policy{n}/scaling_governor" for n in (0, 32)),
    ):
        (folder / file).unlink()
    wanted = {"isolated": "2-5", "governor": "performance", "smt": False}
    outcome = compared(root, "cpu", wanted)
    assert (outcome.reason, {each.found for each in outcome.mismatches}) == ("cpu_unknown", {None})
    assert len(outcome.mismatches) == 3


def iommu(root, kind):
    """Let the kernel use an IOMMU, with a domain of a kind for each GPU."""
    (root / "sys/class/iommu/dmar0").mkdir(parents=True, exist_ok=True)
    for device in (root / "sys/bus/pci/devices").iterdir():
        group = device.resolve() / "iommu_group"
        group.mkdir(exist_ok=True)
        (group / "type").write_text(f"{kind}\n")


@pytest.mark.parametrize(
    ("kind", "mode"), [("DMA", "on"), ("DMA-FQ", "on"), ("identity", "passthrough")]
)
def test_what_the_iommu_does_is_read_from_the_gpus_groups(root, kind, mode):
    iommu(root, kind)
    for wanted in ("on", "off", "passthrough"):
        outcome = compared(root, "iommu", {"mode": wanted})
        assert outcome.done == (wanted == mode)
        if not outcome.done:
            assert outcome.reason == "iommu_differs"
            assert {each.found for each in outcome.mismatches} == {mode}
            assert len(outcome.objects) == 4


def test_an_iommu_that_nobody_can_see_is_unknown(root):
    (root / "sys/class/iommu/dmar0").mkdir()
    assert compared(root, "iommu", {"mode": "on"}).reason == "iommu_unknown"
    (root / "sys/class/iommu/dmar0").rmdir()
    assert compared(root, "iommu", {"mode": "on"}).mismatches[0].found == "off"
    (root / "sys/class/iommu").rmdir()
    outcome = compared(root, "iommu", {"mode": "on"})
    assert (outcome.reason, outcome.mismatches) == (
        "iommu_unknown",
        (Mismatch(field="mode", wanted="on", found=None),),
    )


@pytest.fixture
def gpus(on):
    """Give a function that puts this process on a machine and compares its GPUs."""
    with ExitStack() as stack:

        def start(kind="a30x4"):
            machine = on(kind)
            driver = stack.enter_context(open_driver())
            return machine, lambda **wanted: sendable(gpu_unit(driver).converge(wanted, NOW))

        yield start


def test_gpus_are_compared_one_by_one_in_watts_and_words(gpus):
    machine, compare = gpus()
    asked = {"persistenceMode": True, "ecc": True, "computeMode": "default", "powerLimitWatts": 400}
    assert compare(**asked).done
    with machine.change() as now:
        now.gpus[1].persistence = 0
        now.gpus[2].ecc_pending = 0
        now.gpus[3].compute_mode = 3
        now.gpus[3].power_limit_mw = 350_500
    outcome = compare(**asked)
    names = [gpu.uuid.decode() for gpu in machine.read().gpus[:4]]
    assert (outcome.reason, outcome.objects) == ("gpu_differs", tuple(names[1:]))
    assert outcome.mismatches == (
        Mismatch(field="persistenceMode", wanted="on", found="off", object=names[1]),
        Mismatch(field="ecc", wanted="on", found="on, off at the next reset", object=names[2]),
        Mismatch(field="computeMode", wanted="default", found="exclusiveProcess", object=names[3]),
        Mismatch(field="powerLimitWatts", wanted="400", found="350.500", object=names[3]),
    )


def test_a_gpu_that_does_not_answer_or_cannot_is_unknown(gpus):
    machine, compare = gpus()
    with machine.change() as now:
        now.gpus[0].power_limit_mw = 0
    outcome = compare(powerLimitWatts=400)
    assert (outcome.reason, outcome.mismatches[0].found) == ("gpu_unknown", None)
    machine.lose(2)
    outcome = compare(ecc=True)
    assert (outcome.reason, outcome.objects) == ("gpu_unknown", ("GPU 2",))


KUBECTL = """\
#!{python}
import json, sys
from pathlib import Path

here = Path({folder!r})
with (here / "calls").open("a") as log:
    log.write(json.dumps(sys.argv[1:]) + "\\n")
answer = here / "node.json"
if not answer.exists():
    sys.exit("Error from server (Forbidden): nodes \\"n1\\" is forbidden")
print(answer.read_text())
"""


@pytest.fixture
def cluster(root, tmp_path, monkeypatch):
    """Have a kubectl on the path, and a kubelet's credentials; gives what it answers from."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "kubectl"
    program.write_text(KUBECTL.format(python=sys.executable, folder=str(folder)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("APPORTION_KUBECONFIG", raising=False)
    config = root / "etc/kubernetes/kubelet.conf"
    config.parent.mkdir(parents=True)
    config.write_text("{}")
    return folder


WISH = {
    "labels": {"tier": "gpu", "example.com/zone": "a"},
    "taints": [{"key": "gpu", "value": "", "effect": "NoSchedule"}],
}


def test_labels_and_taints_are_compared_with_the_clusters_own_word(root, cluster):
    node = {
        "metadata": {"labels": {"tier": "gpu", "example.com/zone": "a", "more": "x"}},
        "spec": {"taints": [{"key": "gpu", "effect": "NoSchedule"}, {"key": "b", "effect": "c"}]},
    }
    (cluster / "node.json").write_text(json.dumps(node))
    assert compared(root, "kubernetes", WISH).done
    node["metadata"]["labels"] = {"tier": "cpu"}
    node["spec"] = {}
    (cluster / "node.json").write_text(json.dumps(node))
    outcome = compared(root, "kubernetes", WISH)
    assert outcome.reason == "kubernetes_differs"
    assert outcome.mismatches == (
        Mismatch(field="labels[example.com/zone]", wanted="a", found="not there"),
        Mismatch(field="labels[tier]", wanted="gpu", found="cpu"),
        Mismatch(field="taints[gpu:NoSchedule]", wanted="none", found="not there"),
    )
    [first, _] = (cluster / "calls").read_text().splitlines()
    assert json.loads(first)[0] == f"--kubeconfig={root}/etc/kubernetes/kubelet.conf"
    assert json.loads(first)[-1] == "n1"


def test_a_cluster_that_is_not_there_or_says_no_is_unknown_in_its_words(root, cluster):
    outcome = compared(root, "kubernetes", WISH)
    assert (outcome.reason, {each.found for each in outcome.mismatches}) == (
        "kubernetes_unknown",
        {None},
    )
    assert "is forbidden" in outcome.message
    (cluster / "node.json").write_text("no json")
    assert compared(root, "kubernetes", WISH).reason == "kubernetes_unknown"
    (root / "etc/kubernetes/kubelet.conf").unlink()
    assert "kubelet.conf" in compared(root, "kubernetes", WISH).message
    (cluster / "kubectl").unlink()
    assert "kubectl is not on the path" in compared(root, "kubernetes", WISH).message


def test_a_cluster_is_asked_once_a_minute_and_at_once_for_something_else(root, cluster):
    unit = next(each for each in host_units(root, "n1") if each.name == "kubernetes")
    moments = [NOW + timedelta(seconds=s) for s in (0, 30, 59, 60, 90)]
    for moment in moments:
        unit.converge(WISH, moment)
    assert len((cluster / "calls").read_text().splitlines()) == 2
    unit.converge({"labels": {"tier": "x"}}, moments[-1])
    assert len((cluster / "calls").read_text().splitlines()) == 3
    unit.converge({"labels": {"tier": "x"}}, NOW - timedelta(days=1))  # a clock that was set back
    assert len((cluster / "calls").read_text().splitlines()) == 4
    assert os.environ["PATH"] == str(cluster)
