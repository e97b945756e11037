"""This machine put together for the loop: what observes it, and the units that it has.

A unit that the agent is to have is added here.
"""

import json
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
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
from apportion.agent.sharing.journal import Step
from apportion.agent.sharing.unit import SharingUnit
from apportion.agent.units import Unit
from apportion.agent.watching import take_in_errors
from apportion.errors import UnavailableError

AGENT: Final = "apportion"
CDI_VARIABLE: Final = "APPORTION_CDI_DIR"
CDI_DIR: Final = "/var/run/cdi"
"""Where container runtimes look for devices, where the variable names no other place."""
_MIG_JOURNAL: Final = "mig.json"


@contextmanager
def machine(
    state: Path, node: str | None, document: Path | None, now: Callable[[], datetime]
) -> Generator[Machine]:
    """Give this machine, with its driver open where it has one.

    With ``document`` something else says what there is, in a file that is read anew each time, and
    there is nothing here to act on.
    """
    make_private(state)
    name = node or host_name()
    if document is not None:
        yield Machine(observe=lambda: read_inventory(document))
        return
    try:
        with open_driver() as driver:
            yield _with_driver(driver, state, name, now)
            return
    except DriverError as error:
        problem = error.message
    yield _without_driver(state, name, problem)


def _with_driver(driver: Driver, state: Path, node: str, now: Callable[[], datetime]) -> Machine:
    root = host_root()
    boot_id = read_host(root).boot_id
    remembered = Remembered(state / GPUS_FILE, boot_id)
    journal = Journal(state / _MIG_JOURNAL, boot_id)
    watch = driver.watch()

    def made(gpu: str, instance: GpuInstance) -> Made | None:
        uuids = {compute.uuid for compute in instance.computes}
        entries = [each for each in journal.entries(gpu) if each.uuid in uuids]
        return Made(allocation_id=entries[0].allocation_id) if entries else None

    def observe() -> Mapping[str, Any]:
        take_in_errors(watch, driver, remembered, now())
        return inventory(driver, remembered, root, node=node, agent=AGENT, made=made)

    return Machine(observe=observe, units=_units(driver, state, root, boot_id, journal))


def _units(
    driver: Driver, state: Path, root: Path, boot_id: str, journal: Journal
) -> Sequence[Unit]:
    """Return the units in the order of their steps: cut, share, then hand out what is there."""
    shared = SharingJournal(state / "sharing")
    tools = Tools(driver=SharingDriver(driver), journal=shared, state=state, boot_id=boot_id)

    def made_for(device: str) -> str | None:
        found = (each.allocation_id for each in journal.entries() if each.uuid == device)
        return next(found, None)

    def shared_by(gpu: str) -> str | None:
        record = shared.read(gpu)
        return record.mode if record is not None and record.step is Step.RUNNING else None

    devices = Devices(
        driver,
        state=state,
        cdi_dir=Path(os.environ.get(CDI_VARIABLE) or CDI_DIR),
        root=root,
        shared_by=shared_by,
        made_for=made_for,
    )
    return [MigLayout(driver, journal, devices.holds), SharingUnit(tools), devices]


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
