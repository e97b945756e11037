"""This machine put together for the loop: what observes it, and the units that it has.

A unit that the agent is to have is added here.
"""

import json
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, cast

from apportion.agent.devices.unit import Devices
from apportion.agent.files import make_private
from apportion.agent.host import host_root, read_host
from apportion.agent.inventory import Made, inventory
from apportion.agent.looking import GPUS_FILE, host_name
from apportion.agent.loop import Machine
from apportion.agent.mig.journal import Journal
from apportion.agent.mig.unit import MigLayout
from apportion.agent.nvml import Driver, DriverError, GpuInstance, open_driver
from apportion.agent.remembered import Remembered
from apportion.agent.sharing.driver import SharingDriver
from apportion.agent.sharing.gpu import Tools
from apportion.agent.sharing.journal import Journal as SharingJournal
from apportion.agent.sharing.unit import SharingUnit
from apportion.agent.watching import take_in_errors
from apportion.errors import UnavailableError

AGENT: Final = "apportion"
_MIG_JOURNAL: Final = "mig.json"
_SHARING_JOURNAL: Final = "sharing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where this machine's agent keeps things: its own state, and where runtimes look for CDI."""

    state: Path
    cdi_dir: Path


@contextmanager
def machine(
    places: Places, node: str | None, document: Path | None, now: Callable[[], datetime]
) -> Generator[Machine]:
    """Give this machine, with its driver open where it has one.

    With ``document`` something else says what there is, in a file that is read anew each time, and
    there is nothing here to act on.
    """
    make_private(places.state)
    name = node or host_name()
    if document is not None:
        yield Machine(observe=lambda: read_inventory(document))
        return
    with ExitStack() as stack:
        try:
            driver = stack.enter_context(open_driver())
        except DriverError as error:
            yield _without_driver(places.state, name, error.message)
        else:
            yield _with_driver(driver, places, name, now)


def _with_driver(driver: Driver, places: Places, node: str, now: Callable[[], datetime]) -> Machine:
    root, state = host_root(), places.state
    boot_id = read_host(root).boot_id
    remembered = Remembered(state / GPUS_FILE, boot_id)
    watch = driver.watch()
    cut = Journal(state / _MIG_JOURNAL, boot_id)
    sharing = SharingUnit(
        Tools(
            driver=SharingDriver(driver),
            journal=SharingJournal(state / _SHARING_JOURNAL),
            state=state,
            boot_id=boot_id,
        )
    )
    devices = Devices(
        driver,
        state=state,
        cdi_dir=places.cdi_dir,
        root=root,
        shared_by=sharing.mode_of,
        made_for=cut.made_for,
    )

    def made(_gpu: str, instance: GpuInstance) -> Made | None:
        entry = next(filter(None, (cut.find(each.uuid) for each in instance.computes)), None)
        return None if entry is None else Made(allocation_id=entry.allocation_id)

    def observe() -> Mapping[str, Any]:
        take_in_errors(watch, driver, remembered, now())
        return inventory(driver, remembered, root, node=node, agent=AGENT, made=made)

    # What is over goes before what is cut and shared anew, and what begins after it: a round that
    # changes anything is followed by another at once.
    return Machine(observe=observe, units=[MigLayout(driver, cut, devices.holds), sharing, devices])


def _without_driver(state: Path, node: str, problem: str) -> Machine:
    root = host_root()
    remembered = Remembered(state / GPUS_FILE, read_host(root).boot_id)
    return Machine(
        observe=lambda: inventory(None, remembered, root, node=node, agent=AGENT, problem=problem)
    )


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
