"""One GPU shared as asked, and given back as it was found."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from fractions import Fraction
from pathlib import Path
from typing import Final

from apportion.agent.sharing.control import Control
from apportion.agent.sharing.daemon import MpsDaemon
from apportion.agent.sharing.driver import (
    DEFAULT,
    EXCLUSIVE,
    PROHIBITED,
    ComputeMode,
    SharedGpu,
    SharingDriver,
)
from apportion.agent.sharing.environment import mps_root
from apportion.agent.sharing.faults import Hindered
from apportion.agent.sharing.journal import Journal, Record, Step
from apportion.agent.sharing.limits import limits_of
from apportion.agent.sharing.processes import Processes, name_of
from apportion.agent.sharing.timeslice import UNSUPPORTED, TimeSlices
from apportion.agent.units import Wanted

_MODES: Final[Mapping[str, ComputeMode]] = {"mps": EXCLUSIVE, "timeslice": DEFAULT}


CONTROL_VARIABLE: Final = "APPORTION_MPS_CONTROL"


def _mps_control() -> str:
    return os.environ.get(CONTROL_VARIABLE) or "nvidia-cuda-mps-control"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What sharing works with.

    ``state`` is the agent's state directory; holders need to reach its ``mps`` folder. ``boot_id``
    names this start of the machine. ``patience_s`` is how many seconds one command may take.
    """

    driver: SharingDriver
    journal: Journal
    state: Path
    boot_id: str
    mps_control: str = field(default_factory=_mps_control)
    nvidia_smi: str = "nvidia-smi"
    patience_s: int = 10


@dataclass(frozen=True, slots=True)
class GpuSharing:
    """One GPU. Each method raises Hindered with what its next step waits for."""

    gpu: SharedGpu
    tools: Tools
    processes: Processes

    def share(self, wanted: Wanted, now: datetime) -> str:
        """Share it as wanted; returns what there is to tell about it."""
        record = self.tools.journal.read(self.gpu.uuid)
        if record is not None and record.boot_id != self.tools.boot_id:
            record = None  # all that it speaks of went with the machine's last start
        if record is not None and (record.mode != wanted["mode"] or _leaving(record)):
            self.leave()
            record = None
        daemon = self._daemon()
        if wanted["mode"] == "mps":
            daemon.refuse_foreign()
        record = self._take(wanted["mode"], daemon) if record is None else record
        self._set_compute_mode(_MODES[record.mode])
        if record.mode == "timeslice":
            return self._slice(record, wanted.get("time_slice"))
        share = _share_of(wanted, self.gpu.uuid)
        return daemon.run(record, limits_of(share, self.gpu.memory_mib), now)

    def leave(self) -> None:
        """Give it back as it was found, unless somebody is on it."""
        record = self.tools.journal.read(self.gpu.uuid)
        if record is None or forget_reboot(self.tools, record):
            return
        if record.mode == "mps" and record.step is not Step.RESTORING:
            record = self._daemon().quit(record)
        record = self.tools.journal.write(replace(record, step=Step.RESTORING))
        self._restore(record)
        self.tools.journal.remove(record.gpu)

    def _take(self, mode: str, daemon: MpsDaemon) -> Record:
        """Put on record how a GPU was found, before anything of it is changed."""
        uuid = self.gpu.uuid
        if self.gpu.mig:
            raise Hindered("gpu_in_mig_mode", f"{uuid} is in MIG mode", uuid)
        found = self.tools.driver.compute_mode(uuid)
        if found == PROHIBITED:
            message = f"{uuid} is closed to all by its compute mode, which we did not set"
            raise Hindered("compute_prohibited", message, uuid)
        users = daemon.users() if EXCLUSIVE in (found, _MODES[mode]) else ()
        if users:
            message = f"processes are on {uuid}: {', '.join(name_of(pid) for pid in users)}"
            raise Hindered("gpu_in_use", message, uuid, *map(str, users))
        boot_id = self.tools.boot_id
        return self.tools.journal.write(
            Record(gpu=uuid, boot_id=boot_id, mode=mode, step=Step.TAKING, compute_mode=found)
        )

    def _set_compute_mode(self, mode: ComputeMode) -> None:
        """Set the compute mode, where it is not what it is to be."""
        if self.tools.driver.compute_mode(self.gpu.uuid) != mode:
            self.tools.driver.set_compute_mode(self.gpu.uuid, mode)

    def _slice(self, record: Record, length: str | None) -> str:
        """Set the length of time slices, where one is asked for; tells where the driver cannot.

        The GPU is shared all the same then: a length that is not ours to choose stays.
        """
        told = ""
        if length is not None or record.time_slice is not None:
            try:
                record = self._set_slice(record, length)
            except Hindered as hindered:
                if hindered.reason != UNSUPPORTED:
                    raise
                told = hindered.message
        if record.step is not Step.RUNNING:
            self.tools.journal.write(replace(record, step=Step.RUNNING))
        return told

    def _set_slice(self, record: Record, length: str | None) -> Record:
        found = self._slices().read(record.gpu)
        original = record.time_slice or found
        goal = length or original
        if (record.time_slice, record.slice_set) != (original, goal):
            record = replace(record, step=Step.TAKING, time_slice=original, slice_set=goal)
            self.tools.journal.write(record)
        if found != goal:
            self._slices().set(record.gpu, goal)
        return record

    def _restore(self, record: Record) -> None:
        """Set what was found again, unless somebody else has set it otherwise since."""
        if self.tools.driver.compute_mode(record.gpu) == _MODES[record.mode]:
            self._set_compute_mode(record.compute_mode)
        if record.time_slice is None or record.time_slice == record.slice_set:
            return
        if self._slices().read(record.gpu) == record.slice_set:
            self._slices().set(record.gpu, record.time_slice)

    def _slices(self) -> TimeSlices:
        return TimeSlices(self.tools.nvidia_smi, patience_s=self.tools.patience_s)

    def _daemon(self) -> MpsDaemon:
        tools = self.tools
        control = Control(
            tools.mps_control,
            state=tools.state,
            gpu_uuid=self.gpu.uuid,
            patience_s=tools.patience_s,
        )
        return MpsDaemon(self.gpu, control, tools.driver, tools.journal, self.processes)


def forget_reboot(tools: Tools, record: Record) -> bool:
    """Forget what was done before the machine's last start, which undid it; tell if it was so."""
    if record.boot_id == tools.boot_id:
        return False
    shutil.rmtree(mps_root(tools.state, record.gpu), ignore_errors=True)
    tools.journal.remove(record.gpu)
    return True


def _leaving(record: Record) -> bool:
    return record.step in (Step.QUITTING, Step.RESTORING)


def _share_of(wanted: Wanted, uuid: str) -> Fraction:
    """Return the most that one process may have: its holder's part, the widest holder's being ours.

    The daemon caps all of a GPU's processes alike, and none can have more than that. So it is one
    slot, or as many as somebody has (``widest``); of free shares it is all where nobody is told.
    """
    one = Fraction(wanted["mps_units"], 100) if "replicas" in wanted else Fraction(1)
    widest = wanted.get("widest", {}).get(uuid)
    return one if widest is None else Fraction(widest)
