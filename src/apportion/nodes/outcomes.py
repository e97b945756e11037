"""What reports say of a node's spec: how far its units have come, and what it has of its own."""

from typing import Annotated, Literal

from pydantic import Field

from apportion.doors.schemas import Schema, Text

UnitName = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?$")]


class UnitMismatch(Schema):
    """A field of the host that is not as wanted; ``found`` is null where nobody can tell.

    ``object`` is what it is a field of, such as a GPU, where the machine has several.
    """

    field: Text
    wanted: Text
    found: Text | None = None
    object: Text | None = None


class UnitOutcome(Schema):
    """How far a unit came: ``reason`` is a code, ``objects`` are what it is about.

    ``mismatches`` are what is otherwise than wanted, field by field.
    """

    done: Annotated[bool, Field(strict=True)]
    reason: Text | None = None
    message: Annotated[str, Field(max_length=1000)] = ""
    objects: list[Text] = Field(max_length=64, default_factory=list[str])
    mismatches: list[UnitMismatch] = Field(max_length=64, default_factory=list[UnitMismatch])


class OwnLayout(Schema):
    """The MIG layout that a node takes from its own file, whatever its pool asks for."""

    from_: Literal["node"] = Field(alias="from", default="node")
    layout: Text
