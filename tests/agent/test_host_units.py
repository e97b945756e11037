"""What the policy asks to be made of a host: pages set aside, modules loaded, told honestly."""

import signal
import sys
from datetime import timedelta

import pytest
from host_world import NOW, sendable
from nvml_world import child

from apportion.agent.hosting import HugePages, KernelModules
from apportion.agent.units import Mismatch
from apportion.testing.nvml import Simulation
from apportion.testing.nvml.hosts import KERNEL


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
