"""The unit ``gpu-sharing``: GPUs shared softly, by MPS or by time slices, and given back as found.

Nothing here sets holders apart as MIG does. MPS caps each process of a holder, not the holder; time
slices cap nothing. The outcome says so each time that it is done.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from apportion.agent.sharing.driver import SharedGpu
from apportion.agent.sharing.faults import Hindered
from apportion.agent.sharing.gpu import GpuSharing, Tools, forget_reboot
from apportion.agent.sharing.journal import Step
from apportion.agent.sharing.processes import Processes
from apportion.agent.units import Outcome, Wanted

_MESSAGE_MAX: Final = 1000  # what a report takes
_OBJECTS_MAX: Final = 64
_SOFT: Final = {
    "mps": "soft: MPS caps each process; memory bandwidth, caches and faults are shared",
    "timeslice": "soft: time slices take turns; memory and faults are shared, nothing is capped",
}


@dataclass(frozen=True, slots=True)
class SharingUnit:
    """Makes every GPU of this node shared as asked."""

    tools: Tools

    @property
    def name(self) -> str:
        """The unit's name in the spec."""
        return "gpu-sharing"

    def converge(self, wanted: Wanted | None, now: datetime) -> Outcome:
        """Take the next safe steps on each GPU; what hinders one of them hinders no other."""
        if wanted is None and not self.tools.journal.gpus():
            return Outcome(done=True)
        try:
            gpus = {gpu.uuid: gpu for gpu in self.tools.driver.gpus()}
        except Hindered as hindered:
            return _outcome([hindered], [])
        told = [] if wanted is None else [_SOFT[wanted["mode"]]]
        hindrances: list[Hindered] = []
        for act in self._acts(gpus, wanted, now):
            try:
                said = act()
            except Hindered as hindered:
                hindrances.append(hindered)
            except OSError as error:  # a disk that is full or read-only, where no step foresaw it
                hindrances.append(Hindered("state_not_written", str(error)))
            else:
                told += [said] if said else []
        return _outcome(hindrances, told)

    def mode_of(self, uuid: str) -> str | None:
        """Return how a GPU is shared, ``mps`` or ``timeslice``; None where it is not, or not yet.

        Raises Hindered where that cannot be read.
        """
        record = self.tools.journal.read(uuid)
        if record is None or record.boot_id != self.tools.boot_id:
            return None
        return record.mode if record.step is Step.RUNNING else None

    def _acts(
        self, gpus: Mapping[str, SharedGpu], wanted: Wanted | None, now: datetime
    ) -> list[Callable[[], str | None]]:
        """Return what to do about each GPU that is there, or that we have on record."""
        processes = Processes()
        acts: list[Callable[[], str | None]] = []
        for gpu in gpus.values():
            sharing = GpuSharing(gpu, self.tools, processes)
            if wanted is None:
                acts.append(sharing.leave)
            else:
                acts.append(lambda sharing=sharing: sharing.share(wanted, now))
        gone = (uuid for uuid in self.tools.journal.gpus() if uuid not in gpus)
        return acts + [lambda uuid=uuid: self._gone(uuid) for uuid in gone]

    def _gone(self, uuid: str) -> None:
        """Tell of a GPU that went while it was shared; after a restart nothing of it is left."""
        record = self.tools.journal.read(uuid)
        if record is not None and not forget_reboot(self.tools, record):
            message = f"{uuid} does not answer any more; it is given back when it does"
            raise Hindered("gpu_gone", message, uuid)


def _outcome(hindrances: Sequence[Hindered], told: Sequence[str]) -> Outcome:
    if not hindrances:
        return Outcome(done=True, message="; ".join(told)[:_MESSAGE_MAX])
    objects = [name for one in hindrances for name in one.objects]
    return Outcome(
        done=False,
        reason=hindrances[0].reason,
        message="; ".join(one.message for one in hindrances)[:_MESSAGE_MAX],
        objects=tuple(objects[:_OBJECTS_MAX]),
    )
