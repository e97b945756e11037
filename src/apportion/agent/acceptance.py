"""Acceptance checks: what a machine has to pass before it takes work, by their names in the policy.

A check judges the inventory document, so that what it says can be told from what the server knows.
Packages add checks as entry points of the group ``apportion.acceptance``, on nodes and servers.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from apportion import plugins
from apportion.errors import InvalidInputError
from apportion.geometry import find_board

Document = Mapping[str, Any]
Check = Callable[[Document, Mapping[str, Any]], Iterable[str]]
"""Gives what is wrong, a sentence each; a check that gives nothing is passed.

It is given the document, and its step in the policy: ``kind``, and parameters of its own.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of a check; ``details`` say what is wrong."""

    check: str
    passed: bool
    details: tuple[str, ...]


def register_check(name: str, check: Check) -> None:
    """Add a check that policies can ask for by that name."""
    _CHECKS[name] = check


def run_check(name: str, document: Document, step: Mapping[str, Any] | None = None) -> Result:
    """Run a check, by its step in the policy; InvalidInputError for one that is not here."""
    check: Check | None = _CHECKS.get(name) or plugins.load(plugins.ACCEPTANCE, name)
    if check is None:
        known = _CHECKS.keys() | plugins.names(plugins.ACCEPTANCE)
        raise InvalidInputError(
            "no such check", field="check", given=name, allowed=", ".join(sorted(known))
        )
    details = tuple(check(document, step or {"kind": name}))
    return Result(check=name, passed=not details, details=details)


def _nvml(document: Document, _step: Mapping[str, Any]) -> Iterator[str]:
    """Judge that every GPU answers, with the memory and profiles it should have, in good health."""
    yield from document.get("problems", ())
    if document.get("driver") is None:
        yield "no driver has said what is there"
        return
    if not document["gpus"]:
        yield "there is no GPU"
    for gpu in document["gpus"]:
        for wrong in _wrong(gpu):
            yield f"GPU {gpu['index']} ({gpu['uuid']}): {wrong}"


def _wrong(gpu: Document) -> Iterator[str]:
    if gpu["failed"] is not None:
        yield gpu["failed"]
        return
    expected = _expected_memory(gpu)
    if expected is not None and 16 * gpu["memory_mib"] < 15 * expected:
        yield f"has {gpu['memory_mib']} MiB of memory, and should have {expected}"
    for each in gpu["differences"]:
        name = "" if each["profile"] is None else f"{each['profile']}: "
        yield (
            f"{name}{each['figure']} is {each['driver']} by the driver, "
            f"and {each['package']} by the table of boards"
        )
    if gpu["memory_health"]["retirement_pending"]:
        yield "memory is to be taken out of use at the next reset"
    for instance in gpu["mig"]["instances"]:
        if instance["failed"] is not None:
            yield f"{instance['uuid']}: {instance['failed']}"


def _expected_memory(gpu: Document) -> int | None:
    """Return what a GPU of that name has, in MiB; None where nobody knows.

    The memory itself is no part of the question, so a board of another size can be told.
    """
    try:
        board = find_board(gpu["product"], pci_device_id=gpu["pci_device_id"])
    except InvalidInputError:
        return None
    return board.memory_total_mib or board.nominal_gb * 1024


_CHECKS: Final[dict[str, Check]] = {"diag.nvml": _nvml}
