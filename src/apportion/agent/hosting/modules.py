"""The unit ``kernelModules``: modules that the kernel is to have. None is ever unloaded.

Nothing is written for the machine's next start: the agent loads them again then, and those that the
policy no longer names are gone.
"""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from apportion.agent.hosting.comparing import failed, read, shown
from apportion.agent.units import Mismatch, Outcome, Wanted

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)
_LONGEST_SECONDS: Final = 60


@dataclass(frozen=True, slots=True)
class KernelModules:
    """The unit of one machine, whose `/sys` and `/lib/modules` lie below ``root``."""

    root: Path
    name: str = "kernelModules"

    def converge(self, wanted: Wanted | None, now: datetime) -> Outcome:  # noqa: ARG002 - the contract of units
        """Load what is wanted and not there; what one module waits for holds up no other."""
        missing = [] if wanted is None else self._missing(wanted["modules"])
        if not missing:
            return Outcome(done=True)
        said = {module: _load(module) for module in missing}
        left = self._missing(missing)
        if not left:
            return Outcome(done=True)
        untold = ("module_missing", "modprobe says that it is loaded")
        reasons = [said[module] or untold for module in left]
        return failed(
            reasons[0][0],
            "; ".join(f"{module}: {why}" for module, (_, why) in zip(left, reasons, strict=True)),
            [Mismatch(field=shown(each), wanted="loaded", found="not loaded") for each in left],
        )

    def _missing(self, modules: list[str]) -> list[str]:
        built_in = self._built_in()
        return [
            module
            for module in modules
            if not _NAME.fullmatch(module)
            or not (self._is_loaded(_kernel_name(module)) or _kernel_name(module) in built_in)
        ]

    def _is_loaded(self, module: str) -> bool:
        """Tell whether the kernel has a module; one that is on its way in or out it has not."""
        folder = self.root / "sys/module" / module
        return folder.is_dir() and read(folder / "initstate") in {None, "live"}

    def _built_in(self) -> set[str]:
        """Return the modules that are part of the kernel; not all of these are in `/sys`."""
        release = read(self.root / "proc/sys/kernel/osrelease") or ""
        listed = read(self.root / "lib/modules" / release / "modules.builtin") or ""
        return {_kernel_name(Path(line).name.partition(".")[0]) for line in listed.splitlines()}


def _kernel_name(module: str) -> str:
    return module.replace("-", "_")


def _load(module: str) -> tuple[str, str] | None:
    """Have a module loaded; returns the reason and the words where that failed."""
    if _NAME.fullmatch(module) is None:
        return "module_refused", "is no name of a module"
    program = shutil.which("modprobe")
    if program is None:
        return "modprobe_missing", "modprobe is not on the path"
    try:
        done = subprocess.run(  # noqa: S603 - the name cannot be an option, and is one word
            [program, "--", module],
            capture_output=True,
            text=True,
            timeout=_LONGEST_SECONDS,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "module_failed", shown(error)
    if done.returncode == 0:
        return None
    words = shown(done.stderr)
    return "module_missing" if "not found" in words else "module_failed", words
