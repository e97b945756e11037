"""This machine put together for the loop: what observes it, and the units that it has.

A unit that the agent is to have is added here, or in `driven` where it needs the driver.
"""

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, cast

import structlog

from apportion.agent.driven import Driven, Places, open_driven
from apportion.agent.files import make_private
from apportion.agent.host import host_root, read_host
from apportion.agent.hosting import GPU_UNIT, host_units
from apportion.agent.inventory import inventory, nobody_made
from apportion.agent.looking import GPUS_FILE, host_name
from apportion.agent.loop import Described, Machine
from apportion.agent.nvml import DriverError
from apportion.agent.own_layout import AgentConfig
from apportion.agent.remembered import Remembered
from apportion.agent.units import Outcome, Unit, Wanted
from apportion.errors import UnavailableError

AGENT: Final = "apportion"
_DRIVEN_UNITS: Final = (GPU_UNIT, "mig-layout", "gpu-sharing", "devices")

_log: Final = structlog.get_logger()


@contextmanager
def machine(
    places: Places,
    node: str | None,
    document: Path | None,
    now: Callable[[], datetime],
    config: AgentConfig | None = None,
) -> Generator[Machine]:
    """Give this machine, with its driver open where and while it has one.

    With ``document`` something else says what there is, in a file that is read anew each time, and
    there is nothing here to act on. ``config`` is what the node itself says, nothing if left out.
    """
    make_private(places.state)
    config = config or AgentConfig()
    if document is not None:
        yield Described(document=lambda: read_inventory(document), told=config.facts)
        return
    this = ThisMachine(places, node or host_name(), now, config)
    try:
        yield this
    finally:
        this.close()


class ThisMachine:
    """The machine that the agent runs on. Its driver may come after the agent, go, and come back.

    All that units have to remember lies on disk: with the next driver they are made anew.
    """

    def __init__(
        self, places: Places, node: str, now: Callable[[], datetime], config: AgentConfig
    ) -> None:
        """Look for a driver; OSError where the kernel does not say which boot this is."""
        self._places = places
        self._node = node
        self._now = now
        self._config = config
        self._root = host_root()
        self._remembered = Remembered(places.state / GPUS_FILE, read_host(self._root).boot_id)
        self._units = host_units(self._root, node)
        self._problem: str | None = None
        self._driven: Driven | None = None
        self._look_for_driver()

    def units(self) -> Sequence[Unit]:
        """Return the units of the host, and those of its GPUs, as far as there is a driver."""
        self._look_for_driver()
        if self._driven is not None:
            return [*self._units, *self._driven.units]
        problem = self._problem or ""
        return [*self._units, *(_NoDriver(name, problem) for name in _DRIVEN_UNITS)]

    def facts(self) -> Mapping[str, Any]:
        """Return what the node says of itself."""
        return self._config.facts

    def observe(self) -> Mapping[str, Any]:
        """Return the inventory document, as of now."""
        if self._driven is not None:
            self._driven.listen(self._remembered, self._now())
        return inventory(
            None if self._driven is None else self._driven.driver,
            self._remembered,
            self._root,
            node=self._node,
            agent=AGENT,
            problem=self._problem,
            made=nobody_made if self._driven is None else self._driven.made,
        )

    def close(self) -> None:
        """Let go of the driver, if there is one."""
        if self._driven is not None:
            self._driven.close()
            self._driven = None

    def _look_for_driver(self) -> None:
        """Open a driver that has come, and let go of one that has gone."""
        if self._driven is not None:
            why = self._driven.why_gone()
            if why is None:
                return
            _log.warning("driver gone", reason=why)
            self.close()
        try:
            self._driven = open_driven(self._places, self._root, self._config.cut)
        except (DriverError, OSError) as error:
            if self._problem != str(error):
                _log.warning("no driver", reason=str(error))
            self._problem = str(error)
        else:
            self._problem = None


@dataclass(frozen=True, slots=True)
class _NoDriver:
    """A unit that nobody can make while the machine has no driver."""

    name: str
    problem: str

    def converge(self, wanted: Wanted | None, now: datetime) -> Outcome:  # noqa: ARG002 - the contract of units
        """Do nothing, and say why."""
        if wanted is None:
            return Outcome(done=True)
        return Outcome(done=False, reason="no_driver", message=self.problem)


def read_inventory(path: Path) -> Mapping[str, Any]:
    """Read an inventory document; UnavailableError where there is none to read now."""
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise UnavailableError(
            f"cannot be read: {error.strerror}", field="inventory", given=str(path)
        ) from error
    except ValueError as error:
        raise UnavailableError(
            f"is no JSON: {error}", field="inventory", given=str(path)
        ) from error
    if not isinstance(document, dict):
        raise UnavailableError("is no inventory document", field="inventory", given=str(path))
    return cast("Mapping[str, Any]", document)
