"""The file of usage records: one JSON object a line, for its owner alone.

A writer holds a lock beside the file and replaces the file whole, so that a reader sees all of a
record or none of it, two writers lose nothing of each other's, and a crash leaves what was there.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Generator
from fractions import Fraction
from pathlib import Path
from typing import Final, cast

from apportion.errors import InvalidInputError, UnavailableError
from apportion.planning.accounting import SECONDS_GRAMMAR, Ledger, UsageRecord
from apportion.planning.isolation import Mechanism
from apportion.quantities.shares import parse_fraction, parse_number

_KEYS: Final = ("job_id", "attempt", "label", "mechanism", "requested", "allocated", "seconds")


def path_of(given: str | None) -> Path:
    """Give the file: as given, else ``APPORTION_RECORDS``, else in the user's state directory."""
    chosen = given if given is not None else os.environ.get("APPORTION_RECORDS")
    if chosen:
        return Path(chosen)
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "apportion" / "records.jsonl"


def read(path: Path) -> Ledger:
    """Read the ledger; empty where there is no file.

    Raises InvalidInputError that names file and line for what is no record, UnavailableError for a
    file that cannot be read.
    """
    with _reporting(path):
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return Ledger({})
        except UnicodeDecodeError:
            raise _bad(str(path), "is not UTF-8 text") from None
    return Ledger.of(
        _parse(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line
    )


def add(path: Path, record: UsageRecord) -> None:
    """Add one record by the ledger's rule; nothing is written when it is refused."""
    with _reporting(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(path.with_name(f"{path.name}.lock")):
            _replace(path, read(path).add(record))


@contextlib.contextmanager
def _locked(path: Path) -> Generator[None]:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _replace(path: Path, ledger: Ledger) -> None:
    """Write a new file beside the old one, make it durable, and put it in the old one's place."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)  # left by a crash; the lock is ours
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(_row(record))}\n" for record in ledger.records.values())
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextlib.contextmanager
def _reporting(path: Path) -> Generator[None]:
    """Turn the system's errors into one that names the file."""
    try:
        yield
    except OSError as error:
        raise UnavailableError(
            f"cannot be used: {error.strerror or error}", field=f"records file {path}"
        ) from error


def _row(record: UsageRecord) -> dict[str, object]:
    return {
        "job_id": record.job_id,
        "attempt": record.attempt,
        "label": record.label,
        "mechanism": str(record.mechanism),
        "requested": str(record.requested),
        "allocated": str(record.allocated),
        "seconds": None if record.seconds is None else str(record.seconds),
    }


def _parse(line: str, where: str) -> UsageRecord:
    """Read one line; every complaint names the file and the line."""
    try:
        value: object = json.loads(line)
    except ValueError as error:
        raise _bad(where, f"is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise _bad(where, "is not a JSON object")
    row = cast("dict[str, object]", value)
    if set(row) != set(_KEYS):
        raise _bad(where, f"has other keys than {', '.join(_KEYS)}")
    if not isinstance(row["attempt"], int) or row["mechanism"] not in tuple(Mechanism):
        raise _bad(where, "has a bad attempt or mechanism")
    try:
        return UsageRecord(
            job_id=str(row["job_id"]),
            attempt=row["attempt"],
            label=str(row["label"]),
            mechanism=Mechanism(str(row["mechanism"])),
            requested=parse_fraction(str(row["requested"]), field="requested"),
            allocated=parse_fraction(str(row["allocated"]), field="allocated"),
            seconds=_seconds(row["seconds"]),
        )
    except InvalidInputError as error:
        raise _bad(where, str(error)) from None


def _seconds(value: object) -> Fraction | None:
    if value is None:
        return None
    return parse_number(str(value), field="seconds", allowed=SECONDS_GRAMMAR)


def _bad(where: str, why: str) -> InvalidInputError:
    return InvalidInputError(
        why, field=where, allowed="one record a line, as apportion writes them"
    )
