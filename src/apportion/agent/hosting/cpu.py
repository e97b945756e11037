"""How the host's processors are set up."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from apportion.agent.host import cpu_numbers
from apportion.agent.hosting.comparing import read, shown
from apportion.agent.units import Mismatch, Wanted

_SMT: Final = {"1": True, "0": False}


def look_at_cpu(root: Path, wanted: Wanted) -> Iterator[Mismatch]:
    """Compare ``isolated``, ``governor`` and ``smt``, those that are wanted."""
    folder = root / "sys/devices/system/cpu"
    if "isolated" in wanted:
        yield from _isolated(read(folder / "isolated"), wanted["isolated"])
    if "governor" in wanted:
        yield from _governors(folder, wanted["governor"])
    if "smt" in wanted:
        found = _SMT.get(read(folder / "smt/active") or "")
        if found is not wanted["smt"]:
            told = None if found is None else shown(found)
            yield Mismatch(field="smt", wanted=shown(wanted["smt"]), found=told)


def _isolated(found: str | None, wanted: str) -> Iterator[Mismatch]:
    """Compare sets of processors, which can be written in several ways."""
    if found is None:
        yield Mismatch(field="isolated", wanted=wanted, found=None)
    elif cpu_numbers(found) != cpu_numbers(wanted):
        yield Mismatch(field="isolated", wanted=shown(wanted), found=shown(found))


def _governors(folder: Path, wanted: str) -> Iterator[Mismatch]:
    # One for each group of processors that go at one speed.
    files = folder.glob("cpufreq/policy*/scaling_governor")
    found = Counter(said for file in files if (said := read(file)) is not None)
    if not found:
        yield Mismatch(field="governor", wanted=wanted, found=None)
    elif others := {name: count for name, count in sorted(found.items()) if name != wanted}:
        parts = (f"{name} ({count} of {found.total()})" for name, count in others.items())
        told = ", ".join(parts)
        yield Mismatch(field="governor", wanted=wanted, found=shown(told))
