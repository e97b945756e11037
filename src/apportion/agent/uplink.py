"""Reports on their way: signed and on disk before anything else, sent in their order.

A report that is on disk outlives the agent and the machine, and is sent as often as it takes: the
server tells by its sequence what it has already. What was taken in, or is older than what was, is
removed. There is an end to what is kept: then the oldest go, and the server sees by the gap in the
sequence how many that were.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import structlog

from apportion.agent.files import keep, make_private, read_if_there
from apportion.agent.link import Link, Signed
from apportion.agent.points import Hook, nothing
from apportion.errors import (
    ApportionError,
    ConflictError,
    InvalidInputError,
    InvalidStateError,
    UnauthenticatedError,
    UnavailableError,
)
from apportion.nodes.schemas import ReportAnswer

KEPT_MAX: Final = 10_000
"""The most reports that wait: more than a day of one every ten seconds."""

_SEQUENCE_FILE: Final = "sequence"
_REFUSED: Final = "refused"
_REFUSED_MAX: Final = 20
_WRONG: Final = (InvalidInputError, ConflictError, InvalidStateError)
"""What a report is refused for that will not be another time."""

_log: Final = structlog.get_logger()


class Way(StrEnum):
    """What happens to a report, in its order; tests stop the process around each of them."""

    SPOOLED = "spooled"
    """It is on disk, under its number."""
    NUMBERED = "numbered"
    """Its number is: no other report gets it, also when this one has gone."""
    SENT = "sent"
    """The server has answered that it has it."""
    FORGOTTEN = "forgotten"
    """It is on disk no more."""


class Uplink:
    """The reports of one node that the server has not taken in yet, oldest first.

    ``told`` hears ``before WAY`` and ``after WAY`` around each `Way` that a report goes.
    """

    def __init__(
        self, state: Path, link: Link, *, most: int = KEPT_MAX, told: Hook = nothing
    ) -> None:
        """Find what an earlier life of the agent has left."""
        self._told = told
        self._state = state
        self._spool = state / "spool"
        self._link = link
        self._most = most
        make_private(self._spool / _REFUSED)
        for half_written in self._spool.glob(".*"):
            half_written.unlink()
        self._waiting = sorted(int(each.stem) for each in self._spool.glob("*.json"))
        kept = int(read_if_there(state / _SEQUENCE_FILE) or "0")
        self._sequence = max([kept, *self._waiting[-1:]])
        if self._sequence > kept:
            # Killed before that: once the report has gone, its number would be given away again.
            with suppress(UnavailableError):
                keep(state / _SEQUENCE_FILE, str(self._sequence))
        self._homeless: dict[int, Signed] = {}

    @property
    def waiting(self) -> int:
        """How many reports are on their way."""
        return len(self._waiting)

    def add(self, facts: Mapping[str, Any]) -> int:
        """Sign a report under the next number, and keep it; returns the number.

        One that the disk does not take is kept in memory, until the next one.
        """
        self._drop_oldest()
        self._sequence += 1
        number = self._sequence
        signed = self._link.sign_report({**facts, "sequence": number})
        try:
            # The report first: a number without one would look as if a report were missing.
            self._told(f"before {Way.SPOOLED}")
            keep(self._path(number), _written(signed))
            self._told(f"after {Way.SPOOLED}")
            self._told(f"before {Way.NUMBERED}")
            keep(self._state / _SEQUENCE_FILE, str(number))
            self._told(f"after {Way.NUMBERED}")
        except UnavailableError as error:
            _log.warning("report not kept", sequence=number, reason=str(error))
            self._forget(*self._homeless)
            self._homeless[number] = signed
        self._waiting.append(number)
        return number

    def drain(self) -> ReportAnswer | None:
        """Send what waits, in order, until nothing does or the server is away.

        Returns the last answer; raises UnavailableError where the server is away, and
        UnauthenticatedError where it does not take this node's word.
        """
        answer = None
        while self._waiting:
            number = self._waiting[0]
            signed = self._homeless.get(number) or _read(self._path(number))
            self._told(f"before {Way.SENT}")
            if signed is not None:
                answer = self._deliver(number, signed) or answer
            self._told(f"after {Way.SENT}")
            self._told(f"before {Way.FORGOTTEN}")
            self._forget(number)
            self._told(f"after {Way.FORGOTTEN}")
        return answer

    def _deliver(self, number: int, signed: Signed) -> ReportAnswer | None:
        try:
            answer = self._send(signed)
        except _WRONG as error:
            self._set_aside(number, signed, error)
            return None
        # A state directory that was lost, or copied back, counts from too far below.
        self._sequence = max(self._sequence, answer.sequence)
        return answer

    def _send(self, signed: Signed) -> ReportAnswer:
        try:
            return self._link.send(signed)
        except UnauthenticatedError as error:
            if error.details.get("reason") != "clock_skew":
                raise
            # The clock was wrong when it was signed: once more by what it says now.
            return self._link.send(self._link.sign_again(signed))

    def _set_aside(self, number: int, signed: Signed, error: ApportionError) -> None:
        """Keep a report that the server will never take, so that it holds up no other."""
        _log.error("report refused", sequence=number, code=error.code, reason=str(error))
        folder = self._spool / _REFUSED
        try:
            keep(folder / f"{number:020}.json", _written(signed))
        except UnavailableError:
            return
        for old in sorted(folder.glob("*.json"))[:-_REFUSED_MAX]:
            old.unlink(missing_ok=True)

    def _drop_oldest(self) -> None:
        while len(self._waiting) >= self._most:
            _log.warning("report dropped", sequence=self._waiting[0], kept=self._most)
            self._forget(self._waiting[0])

    def _forget(self, *numbers: int) -> None:
        for number in numbers:
            self._path(number).unlink(missing_ok=True)
            self._homeless.pop(number, None)
            self._waiting.remove(number)

    def _path(self, number: int) -> Path:
        return self._spool / f"{number:020}.json"


def _written(signed: Signed) -> str:
    document = {
        "method": signed.method,
        "path": signed.path,
        "headers": dict(signed.headers),
        "body": (signed.body or b"").decode(),
        "nonce": signed.nonce,
    }
    return json.dumps(document)


def _read(path: Path) -> Signed | None:
    """Read a report back; None for what is none: a disk can lose what it was given."""
    try:
        document: dict[str, Any] = json.loads(path.read_bytes())
        return Signed(**{**document, "body": document["body"].encode()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        _log.exception("report unreadable", path=str(path))
        return None
