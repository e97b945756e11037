"""What the policy asks of a host: made so as far as it can be, compared, told honestly."""

import json
import os
import signal
import sys
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import pytest
from nvml_world import child

from apportion.agent.hosting import HugePages, KernelModules, gpu_unit, host_units
from apportion.agent.nvml import open_driver
from apportion.agent.units import Mismatch
from apportion.nodes.outcomes import UnitOutcome
from apportion.testing.nvml import Simulation
from apportion.testing.nvml.hosts import KERNEL

NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)


@pytest.fixture
def root(tmp_path):
    return Simulation.create(tmp_path / "m", "a30x4").root


def compared(root, name, wanted, now=NOW):
    """Let the unit of that name compare, and check that a report can carry what it says."""
    unit = next(each for each in host_units(root, "n1") if each.name == name)
    return sendable(unit.converge(wanted, now))


def sendable(outcome):
    fields = {name: getattr(outcome, name) for name in ("done", "reason", "message", "objects")}
    rows = [
        {name: getattr(each, name) for name in ("field", "wanted", "found", "object")}
        for each in outcome.mismatches
    ]
    UnitOutcome.model_validate_json(json.dumps({**fields, "mismatches": rows}))
    return outcome


def pages(root, size="2048kB", **counts):
    folder = root / f"sys/kernel/mm/hugepages/hugepages-{size}"
    for name, count in counts.items():
        (folder / f"{name}_hugepages").write_text(f"{count}\n")
    return int((folder / "nr_hugepages").read_text())


class Kernel:
    """The kernel behind the files: it gives what it can, and counts how often it was asked."""

    def __init__(self, root, *, most, size="2048kB"):
        self.root, self.most, self.size, self.asked = root, most, size, 0

    def __call__(self, point):
        if point.startswith("after"):
            self.asked += 1
            total = min(pages(self.root, self.size), self.most)
            pages(self.root, self.size, nr=total, free=total)


def test_pages_of_each_size_are_set_aside_and_read_back(root):
    unit = HugePages(root)
    assert unit.converge({"2Mi": 512, "1Gi": 4}, NOW).done
    assert (pages(root), pages(root, "1048576kB")) == (512, 4)
    assert unit.converge({"2Mi": 0, "1Gi": 2}, NOW).done is False  # all are taken: none is free
    pages(root, free=512)
    pages(root, "1048576kB", free=4)
    assert unit.converge({"2Mi": 0, "1Gi": 2}, NOW).done
    assert (pages(root), pages(root, "1048576kB")) == (0, 2)


def test_where_nothing_is_asked_for_pages_stay_as_they_are(root):
    pages(root, nr=7, free=7)
    assert HugePages(root).converge(None, NOW).done
    assert pages(root) == 7


def test_a_kernel_that_gives_fewer_is_told_of_and_asked_again_in_a_while(root):
    kernel = Kernel(root, most=300)
    unit = HugePages(root, kernel)
    outcome = sendable(unit.converge({"2Mi": 512}, NOW))
    assert (outcome.done, outcome.reason) == (False, "hugepages_short")
    assert outcome.mismatches == (Mismatch(field="2Mi", wanted="512", found="300"),)
    assert outcome.message == "2Mi is to be 512, and it is 300"
    assert unit.converge({"2Mi": 512}, NOW + timedelta(minutes=4)) == outcome
    assert kernel.asked == 1
    kernel.most = 600
    assert unit.converge({"2Mi": 512}, NOW + timedelta(minutes=6)).done
    assert (kernel.asked, pages(root)) == (2, 512)


def test_pages_that_were_taken_away_meanwhile_are_asked_for_at_once(root):
    unit = HugePages(root, Kernel(root, most=300))
    unit.converge({"2Mi": 512}, NOW)
    pages(root, nr=10, free=10)
    assert unit.converge({"2Mi": 200}, NOW).done
    pages(root, nr=10, free=10)
    assert unit.converge({"2Mi": 200}, NOW).done


@pytest.mark.parametrize(
    ("free", "promised", "left"), [(100, 0, 412), (500, 0, 64), (512, 200, 200)]
)
def test_pages_that_somebody_uses_or_is_promised_are_never_taken(root, free, promised, left):
    pages(root, nr=512, free=free, resv=promised)
    outcome = sendable(HugePages(root).converge({"2Mi": 64}, NOW))
    assert pages(root) == left
    assert outcome.done == (left == 64)
    if not outcome.done:
        assert outcome.reason == "hugepages_in_use"
        assert outcome.mismatches[0].found == str(left)


def test_a_size_that_the_kernel_does_not_have_is_unknown_and_none_of_it_is_none(root):
    folder = root / "sys/kernel/mm/hugepages/hugepages-1048576kB"
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    assert HugePages(root).converge({"2Mi": 1, "1Gi": 0}, NOW).done
    outcome = sendable(HugePages(root).converge({"2Mi": 1, "1Gi": 1}, NOW))
    assert outcome.reason == "hugepages_unknown"
    assert outcome.mismatches == (Mismatch(field="1Gi", wanted="1", found=None),)


def test_a_kernel_that_refuses_is_quoted_and_one_size_holds_up_no_other(root):
    folder = root / "sys/kernel/mm/hugepages/hugepages-2048kB"

    def refuse(point):
        if point == "before 2Mi":
            (folder / "nr_hugepages").rename(folder / "kept")
            (folder / "nr_hugepages").mkdir()

    outcome = sendable(HugePages(root, refuse).converge({"2Mi": 8, "1Gi": 2}, NOW))
    assert (outcome.reason, outcome.message.split(";")[0]) == (
        "hugepages_refused",
        "2Mi: Is a directory",
    )
    assert pages(root, "1048576kB") == 2


@pytest.mark.parametrize("point", ["before 2Mi", "after 2Mi", "before 1Gi", "after 1Gi"])
def test_killed_around_any_write_the_next_life_sets_aside_the_same(root, tmp_path, point):
    machine = Simulation(root.parent)
    code = f"""
import os, signal
from datetime import UTC, datetime
from pathlib import Path
from apportion.agent.hosting import HugePages

def told(point):
    if point == {point!r}:
        os.kill(os.getpid(), signal.SIGKILL)

HugePages(Path({str(root)!r}), told).converge({{"2Mi": 64, "1Gi": 2}}, datetime.now(UTC))
"""
    with child(machine, code) as process:
        process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert HugePages(root).converge({"2Mi": 64, "1Gi": 2}, NOW).done
    assert (pages(root), pages(root, "1048576kB")) == (64, 2)


MODPROBE = """\
#!{python}
import sys
from pathlib import Path

[mark, name] = sys.argv[1:]
assert mark == "--"
with open({log!r}, "a") as log:
    log.write(name + "\\n")
if name in {unknown!r}:
    sys.exit(f"modprobe: FATAL: Module {{name}} not found in directory /lib/modules/x")
if name in {stubborn!r}:
    sys.exit(f"modprobe: ERROR: could not insert '{{name}}': Operation not permitted")
if name not in {absent!r}:
    Path({root!r}, "sys/module", name.replace("-", "_")).mkdir(exist_ok=True)
"""


@pytest.fixture
def modprobe(root, tmp_path, monkeypatch):
    """Have a modprobe on the path that knows these modules; gives what it was asked to load."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    log = tmp_path / "asked"

    def start(unknown=(), stubborn=(), absent=()):
        names = {"unknown": unknown, "stubborn": stubborn, "absent": absent}
        program = folder / "modprobe"
        values = {"python": sys.executable, "log": str(log), "root": str(root), **names}
        program.write_text(MODPROBE.format(**values))
        program.chmod(0o755)
        return lambda: log.read_text().split() if log.exists() else []

    return start


def modules(root, *names):
    return sendable(KernelModules(root).converge({"modules": list(names)}, NOW))


def test_modules_are_loaded_once_and_seen_in_the_kernels_own_list(root, modprobe):
    asked = modprobe()
    for _ in range(2):
        assert modules(root, "nvidia-peermem", "vfio").done
    assert asked() == ["nvidia-peermem", "vfio"]
    assert (root / "sys/module/nvidia_peermem").is_dir()


def test_a_module_that_is_part_of_the_kernel_is_there(root, modprobe):
    asked = modprobe()
    (root / f"lib/modules/{KERNEL}/modules.builtin").write_text("kernel/drivers/x/vfio-pci.ko\n")
    assert modules(root, "vfio_pci").done
    assert asked() == []


def test_a_module_that_is_being_loaded_is_not_there_yet(root, modprobe):
    modprobe(absent=["vfio"])
    folder = root / "sys/module/vfio"
    folder.mkdir()
    (folder / "initstate").write_text("coming\n")
    assert modules(root, "vfio").reason == "module_missing"
    (folder / "initstate").write_text("live\n")
    assert modules(root, "vfio").done


@pytest.mark.parametrize(
    ("trouble", "reason", "words"),
    [
        ({"unknown": ["gone"]}, "module_missing", "not found in directory"),
        ({"stubborn": ["gone"]}, "module_failed", "Operation not permitted"),
        ({"absent": ["gone"]}, "module_missing", "modprobe says that it is loaded"),
    ],
)
def test_what_cannot_be_loaded_is_named_and_holds_up_no_other(
    root, modprobe, trouble, reason, words
):
    modprobe(**trouble)
    outcome = modules(root, "gone", "vfio")
    assert (outcome.done, outcome.reason) == (False, reason)
    assert words in outcome.message
    assert outcome.mismatches == (Mismatch(field="gone", wanted="loaded", found="not loaded"),)
    assert (root / "sys/module/vfio").is_dir()


def test_no_name_is_an_option_to_modprobe(root, modprobe):
    asked = modprobe()
    for name in ("-r", "--remove", "a b", "../x", ""):
        assert modules(root, name).reason == "module_refused"
    assert asked() == []


def test_without_modprobe_it_is_said_and_nothing_is_unloaded(root, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    (root / "sys/module/vfio").mkdir()
    assert modules(root, "vfio").done
    assert modules(root, "nvidia").reason == "modprobe_missing"
    assert KernelModules(root).converge(None, NOW).done
    assert (root / "sys/module/vfio").is_dir()


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
