"""A stand-in for the vendor's MPS daemon, where there is no GPU: its commands, limits and faults.

`MpsStandIn` installs it as files that bear the vendor's names; whoever runs them cannot tell. What
they do is in `apportion.testing.mps.stand_in`.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

from apportion.testing.mps.stand_in import CALLS, CLIENT, CONTROL, SERVER, SETTINGS

_MODULE: Final = "mps_stand_in"
_SOURCE: Final = Path(__file__).with_name("stand_in.py")
_SCRIPT: Final = """#!{0} -IS
import sys
sys.path.insert(0, {1!r})
import mps_stand_in
sys.exit(mps_stand_in.main({2!r}))
"""


class MpsStandIn:
    """The stand-in, installed in a directory of its own; `fault` makes it go wrong.

    ``control`` is the path of its ``nvidia-cuda-mps-control``, ``client`` that of a process that
    does as a CUDA application would: ``cuda-client`` connects by its environment, says what it got
    as one line of JSON, and stays till its standard input ends.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{_MODULE}.py").write_text(_SOURCE.read_text("utf-8"), "utf-8")
        for name, role in ((CONTROL, "control"), (SERVER, "server"), (CLIENT, "client")):
            path = directory / name
            path.write_text(_SCRIPT.format(sys.executable, str(directory), role), "utf-8")
            path.chmod(0o755)
        self.fault()

    @property
    def control(self) -> str:
        """The path to run it by."""
        return str(self.directory / CONTROL)

    @property
    def client(self) -> str:
        """The path of the application."""
        return str(self.directory / CLIENT)

    def fault(self, **faults: Any) -> None:
        """Set what goes wrong from now on, and nothing else.

        ``start``: ``refuses``, ``hangs``, ``dies`` (right after it said that it started) or
        ``log_full``. ``hangs``, ``refuses``: names of commands. ``orphans``: servers outlive a
        daemon that was killed. ``kills_caller``: a command, or ``-d``, that is done and whose
        caller is killed before it hears of it.
        """
        settings = self.directory / SETTINGS
        settings.write_text(json.dumps(faults), "utf-8")
        settings.chmod(0o644)

    def calls(self) -> list[str]:
        """Return all commands that it was given, in order, starts as ``-d``."""
        path = self.directory / CALLS
        return path.read_text("utf-8").splitlines() if path.exists() else []
