"""What there is of a machine while its driver is: the units of its GPUs, and who listens to it."""

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from apportion.agent.devices.unit import Devices
from apportion.agent.host import read_host
from apportion.agent.hosting import gpu_unit
from apportion.agent.inventory import Made
from apportion.agent.mig.journal import Journal
from apportion.agent.mig.unit import MigLayout
from apportion.agent.nvml import Driver, DriverError, GpuInstance, Watch, open_driver
from apportion.agent.remembered import Remembered
from apportion.agent.sharing.driver import SharingDriver
from apportion.agent.sharing.gpu import Tools
from apportion.agent.sharing.journal import Journal as SharingJournal
from apportion.agent.sharing.unit import SharingUnit
from apportion.agent.units import Unit, Wanted
from apportion.agent.watching import take_in_errors

MIG_JOURNAL: Final = "mig.json"
_SHARING_JOURNAL: Final = "sharing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where this machine's agent keeps things: its own state, and where runtimes look for CDI."""

    state: Path
    cdi_dir: Path


@dataclass(frozen=True, slots=True)
class Driven:
    """A driver that is open, and all that works with it."""

    driver: Driver
    units: Sequence[Unit]
    _watch: Watch
    _cut: Journal
    _open: ExitStack

    def listen(self, remembered: Remembered, now: datetime) -> None:
        """Take in the critical errors that came since the last time."""
        take_in_errors(self._watch, self.driver, remembered, now)

    def made(self, _gpu: str, instance: GpuInstance) -> Made | None:
        """Tell of an instance whether the agent made it, and for whom."""
        entries = (self._cut.find(each.uuid) for each in instance.computes)
        entry = next(filter(None, entries), None)
        return None if entry is None else Made(allocation_id=entry.allocation_id)

    def why_gone(self) -> str | None:
        """Say why the driver does not answer any more; None where it does."""
        try:
            self.driver.versions()
        except DriverError as error:
            return error.message
        return None

    def close(self) -> None:
        """Let go of the driver; one that is gone has let go by itself."""
        with suppress(DriverError):
            self._open.close()


def open_driven(places: Places, root: Path, own_cut: Wanted | None) -> Driven:
    """Open the driver, and make the units that need it; DriverError where there is none.

    ``own_cut`` is what the node itself wants of ``mig-layout``; None where it is as it is asked.
    """
    state, boot_id = places.state, read_host(root).boot_id
    with ExitStack() as stack:
        driver = stack.enter_context(open_driver())
        watch = driver.watch()
        stack.callback(watch.close)
        cut = Journal(state / MIG_JOURNAL, boot_id)
        tools = Tools(
            driver=SharingDriver(driver),
            journal=SharingJournal(state / _SHARING_JOURNAL),
            state=state,
            boot_id=boot_id,
        )
        sharing = SharingUnit(tools)
        devices = Devices(
            driver,
            state=state,
            cdi_dir=places.cdi_dir,
            root=root,
            shared_by=sharing.mode_of,
            made_for=cut.made_for,
        )
        # What is over goes before what is cut and shared anew, and what begins after it: a round
        # that changes anything is followed by another at once.
        layout = MigLayout(driver, cut, devices.holds, own=own_cut)
        units = (gpu_unit(driver), layout, sharing, devices)
        return Driven(driver, units, watch, cut, stack.pop_all())
