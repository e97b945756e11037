"""The unit ``devices``: hands out what is asked for, and takes back what is not any more."""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from apportion.agent.devices.assignments import (
    Assignment,
    Releasing,
    read_assignments,
    read_releasing,
)
from apportion.agent.devices.faults import HeldUpError
from apportion.agent.devices.files import HandedOut
from apportion.agent.devices.handing_out import HandingOut, MadeFor, SharedBy
from apportion.agent.devices.journal import Journal, Record, Step
from apportion.agent.devices.taking_back import TakingBack
from apportion.agent.mig import Hold
from apportion.agent.nvml import Driver
from apportion.agent.points import Hook, nothing
from apportion.agent.units import Outcome, Wanted

NAME: Final = "devices"

_TOLD_FOR: Final = timedelta(minutes=10)
"""How long reports still say that an allocation was released."""
_MESSAGE_MAX: Final = 1000
_OBJECTS_MAX: Final = 64

HeldUp = dict[str, HeldUpError]


class Devices:
    """The unit of one machine."""

    name: str = NAME

    def __init__(
        self,
        driver: Driver,
        *,
        state: Path,
        cdi_dir: Path,
        root: Path,
        shared_by: SharedBy,
        made_for: MadeFor,
        told: Hook = nothing,
    ) -> None:
        """``state`` is the agent's directory, ``root`` where the host's own ``/proc`` is."""
        self._driver = driver
        self._root = root
        self._shared_by = shared_by
        self._made_for = made_for
        self._files = HandedOut(state, cdi_dir, root)
        self._journal = Journal(state / NAME, told)
        self._held_up: HeldUp = {}

    def converge(self, wanted: Wanted | None, now: datetime) -> Outcome:
        """Take back what is over, then hand out what is asked for.

        Where no server says what is wanted, what was handed out stays so until its own end.
        """
        try:
            records = self._journal.read_all()
            boot_id = self._boot_id()
            asked_for = None if wanted is None else read_assignments(wanted)
            releasing = Releasing() if wanted is None else read_releasing(wanted)
        except ValidationError as error:
            return _outcome({"": HeldUpError("spec_unreadable", str(error))})
        except HeldUpError as error:
            return _outcome({"": error})
        if asked_for is None:
            asked_for = [each.assignment for each in records.values() if _is_out(each)]
        current = {each.allocation_id: each for each in asked_for if not each.is_over(now)}
        self._held_up = self._take_back(
            records, current, self._taking_back(boot_id, releasing), now
        )
        for wish in current.values():
            self._hand_out(records, wish, boot_id, now)
        return _outcome(self._held_up)

    def facts(self) -> Mapping[str, Any]:
        """Return ``allocations`` for the report: how each stands, those that wait as well.

        Nothing where that is not known: then nobody may take what is left out for released.
        """
        try:
            records = self._journal.read_all()
        except HeldUpError:
            return {}
        waiting = [
            {"allocation_id": name, "state": "waiting", **_why(error)}
            for name, error in self._held_up.items()
            if name not in records
        ]
        return {
            "allocations": [
                *waiting,
                *(_told(each, self._held_up.get(each.id)) for each in records.values()),
            ]
        }

    def holds(self) -> Collection[Hold]:
        """Return what is in somebody's hands: nobody may change these devices under them.

        HeldUpError where that cannot be read.
        """
        return _held(self._journal)

    def _take_back(
        self,
        records: dict[str, Record],
        current: Mapping[str, Assignment],
        taking_back: TakingBack,
        now: datetime,
    ) -> HeldUp:
        held_up: HeldUp = {}
        for name, record in [*records.items()]:
            if record.step is Step.RELEASED:
                if now - record.at > _TOLD_FOR:
                    self._journal.remove(record)
                    del records[name]
            elif not _is_out(record) or name not in current:
                try:
                    records[name] = taking_back.go_on(record, now)
                except HeldUpError as error:
                    held_up[name] = error
        return held_up

    def _hand_out(
        self, records: dict[str, Record], wish: Assignment, boot_id: str, now: datetime
    ) -> None:
        """Hand one out; one that is still being taken back is handed out again after that."""
        name = wish.allocation_id
        record = records.get(name)
        if record is not None and not _is_out(record):
            if record.holds:
                return
            record = None
        handing_out = HandingOut(
            driver=self._driver,
            root=self._root,
            journal=self._journal,
            files=self._files,
            shared_by=self._shared_by,
            made_for=self._made_for,
            boot_id=boot_id,
        )
        others = [each for each in records.values() if each.holds and each.id != name]
        try:
            records[name] = handing_out.bind(wish, record, others, now)
        except HeldUpError as error:
            self._held_up[name] = error

    def _taking_back(self, boot_id: str, releasing: Releasing) -> TakingBack:
        return TakingBack(
            driver=self._driver,
            root=self._root,
            journal=self._journal,
            files=self._files,
            boot_id=boot_id,
            releasing=releasing,
        )

    def _boot_id(self) -> str:
        try:
            return (self._root / "proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        except OSError as error:
            raise HeldUpError("boot_unknown", str(error)) from error


def held_devices(state: Path) -> Collection[Hold]:
    """Return what is in somebody's hands by the word of an agent's state directory alone.

    HeldUpError where that cannot be read.
    """
    return _held(Journal(state / NAME, nothing))


def _held(journal: Journal) -> list[Hold]:
    return [
        Hold(gpu=each.assignment.gpu, start=each.assignment.start)
        for each in journal.read_all().values()
        if each.holds
    ]


def _is_out(record: Record) -> bool:
    return record.step in (Step.BINDING, Step.BOUND)


def _told(record: Record, error: HeldUpError | None) -> dict[str, Any]:
    """Say of an allocation how it stands: one that was withdrawn, or is being made, waits."""
    states = {
        Step.BINDING: "waiting",
        Step.BOUND: "bound",
        Step.ENDING: "ending",
        Step.RESETTING: "ending",
        Step.RELEASED: "released",
    }
    row: dict[str, Any] = {
        "allocation_id": record.id,
        "state": states[record.step],
        "at": record.at.isoformat(),
        **_why(error),
    }
    device = record.device
    row["device"] = {"uuid": device.uuid, "gi_id": device.gi_id, "ci_id": device.ci_id}
    return row


def _why(error: HeldUpError | None) -> dict[str, str]:
    if error is None:
        return {}
    return {"reason": error.reason, "message": error.message[:_MESSAGE_MAX]}


def _outcome(held_up: HeldUp) -> Outcome:
    """Say how far it came: done where nothing is held up, else the first reason and what has it."""
    if not held_up:
        return Outcome(done=True)
    first = next(iter(held_up.values()))
    same = [name for name, error in held_up.items() if error.reason == first.reason and name]
    message = "; ".join(f"{name}: {error.message}" for name, error in held_up.items())
    return Outcome(
        done=False,
        reason=first.reason,
        message=message[:_MESSAGE_MAX],
        objects=tuple(same[:_OBJECTS_MAX]),
    )
