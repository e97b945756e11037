"""The units of a node's spec, and what whoever converges one of them answers.

A unit is level-triggered: it compares what is wanted with what is there, takes the next safe steps,
and says how far that came. It may be killed between any two of them, and is called again with the
same or with newer wishes; whatever it has to remember lies on disk before it acts.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final, Protocol

_MESSAGE_MAX: Final = 1000
_OBJECTS_MAX: Final = 64

Wanted = Mapping[str, Any]
"""The fields of one unit of the spec, as the server renders them (docs/reference/partitions.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """One field of the host that is not as wanted; ``found`` is None where nobody can tell.

    ``object`` is what it is a field of, such as a GPU, where the machine has several.
    """

    field: str
    wanted: str
    found: str | None
    object: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How far a unit came: ``done`` where the node is what was wanted.

    Else ``reason`` is a code that scripts can rely on, ``objects`` are what it is about (GPUs,
    instances, allocations), ``mismatches`` what is otherwise than wanted, field by field, and
    ``message`` says it to people.
    """

    done: bool
    reason: str | None = None
    message: str = ""
    objects: tuple[str, ...] = ()
    mismatches: tuple[Mismatch, ...] = ()

    def told(self) -> dict[str, Any]:
        """Return it as a report takes it: one that says too much would be refused as a whole."""
        return {
            **asdict(self),
            "message": self.message[:_MESSAGE_MAX],
            "objects": self.objects[:_OBJECTS_MAX],
        }


class Unit(Protocol):
    """One part of what a node is to be."""

    @property
    def name(self) -> str:
        """The unit's name in the spec, such as ``mig-layout``."""
        ...

    def converge(self, wanted: Wanted | None, now: datetime) -> Outcome:
        """Take the next safe steps; ``wanted`` is None where the spec does not have the unit.

        It does not raise for what a node can be like: a fault is an outcome with its reason.
        """
        ...
