"""What the unit `mig-layout` asks for, GPU by GPU."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from apportion.agent.mig.seen import Gpu
from apportion.errors import InvalidInputError, InvalidStateError
from apportion.geometry import parse_layout

DYNAMIC: Final = "dynamic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """An instance that is to be there; ``allocation_id`` is None on a named layout."""

    profile: str
    start: int
    allocation_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What one GPU is to be: ``mig`` on, off, or either (None), and its instances.

    ``counts`` are those of a named layout: where as many instances of each profile are there,
    wherever they lie, the GPU is what was asked. ``impossible`` says why it can never be.
    """

    mig: bool | None
    instances: tuple[Wanted, ...] = ()
    counts: Mapping[str, int] | None = None
    impossible: str | None = None


def wish_for(gpu: Gpu, unit: Mapping[str, Any]) -> Wish | None:
    """Return what a GPU is to be by the unit's fields; None where they do not speak of it."""
    if gpu.mig is None:
        return None
    if unit["layout"] == DYNAMIC:
        return _on_demand(gpu, unit["gpus"])
    return _named(gpu, unit["layout"])


def _on_demand(gpu: Gpu, rows: Sequence[Mapping[str, Any]]) -> Wish | None:
    row = next((each for each in rows if each["gpu"] == gpu.uuid), None)
    if row is None:
        return None
    wanted = (
        Wanted(profile=each["profile"], start=each["start"], allocation_id=each["allocation_id"])
        for each in row["instances"]
    )
    return Wish(mig=row["mig"], instances=tuple(wanted))


def _named(gpu: Gpu, name: str) -> Wish | None:
    if gpu.board is None:
        return Wish(mig=None, impossible="nobody knows the geometry of its board")
    try:
        layout = parse_layout(name, gpu.board)
    except (InvalidInputError, InvalidStateError) as error:
        return Wish(mig=None, impossible=error.message)
    return Wish(
        mig=layout.mig_enabled,
        instances=tuple(
            Wanted(profile=each.profile, start=each.start) for each in layout.placements
        ),
        counts=layout.counts,
    )
