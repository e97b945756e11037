"""The boards that are known: built from the package's own data, each when first asked for.

`data/mig_profiles.json` names the source of every figure. Reading it costs under two milliseconds,
and only what asks for a board pays them.
"""

import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cache
from typing import Final, TypedDict

from apportion.errors import InvalidInputError
from apportion.geometry.board import Board, Engines, Placement, Profile, Ruler
from apportion.quantities.units import span


class _ProfileRow(TypedDict):
    name: str
    id: int | None
    nvml_profile_index: int | None
    compute_slices: int
    memory_slices: int | None
    memory_mib: int | None
    max_instances: int
    placements: list[tuple[int, int]] | None
    sm: int | None
    copy_engines: int | None
    decoders: int | None
    encoders: int | None
    jpeg: int | None
    ofa: int | None
    attributes: list[str]


class _BoardRow(TypedDict):
    key: str
    model: str
    architecture: str
    pci_device_ids: list[str]
    memory_total_mib: int | None
    memory_nominal_gb: int
    memory_slices: int | None
    compute_slices: int
    max_instances: int
    mig_mode_change_needs_reset: bool
    mig_mode_survives_reboot: bool
    placement_basis: str
    notes: list[str]
    profiles: list[_ProfileRow]


# Beside this file; pathlib and importlib.resources would each double what finding it costs.
_DATA: Final = f"{__file__.rpartition('/')[0]}/data/mig_profiles.json"
_MEDIA_VARIANTS: Final = frozenset({"-me", "me.all"})


def boards() -> tuple[Board, ...]:
    """Return every known board, in the data's order."""
    return tuple(board_by_key(key) for key in _rows())


@cache
def board_by_key(key: str) -> Board:
    """Return the board of a key such as `h100-sxm5-80gb`; InvalidInputError for any other."""
    row = _rows().get(key)
    if row is None:
        raise InvalidInputError(
            "there is no board of that key", field="key", given=key, allowed=", ".join(_rows())
        )
    ruler = _ruler(row)
    return Board(
        key=row["key"],
        model=row["model"],
        architecture=row["architecture"],
        compute_slices=row["compute_slices"],
        memory_slices=row["memory_slices"],
        memory_total_mib=row["memory_total_mib"],
        nominal_gb=row["memory_nominal_gb"],
        placements_known=ruler is not None,
        placement_basis=row["placement_basis"],
        mode_change_needs_reset=row["mig_mode_change_needs_reset"],
        mode_survives_reboot=row["mig_mode_survives_reboot"],
        max_instances=row["max_instances"],
        profiles=tuple(_profile(profile, row, ruler) for profile in row["profiles"]),
        ruler=ruler,
        pci_device_ids=tuple(row["pci_device_ids"]),
        notes=tuple(row["notes"]),
    )


@cache
def _rows() -> Mapping[str, _BoardRow]:
    with open(_DATA, encoding="utf-8") as file:  # noqa: PTH123 - see _DATA
        rows: list[_BoardRow] = json.load(file)["gpus"]
    return {row["key"]: row for row in rows}


def _ruler(row: _BoardRow) -> Ruler | None:
    memory = row["memory_slices"]
    if memory is None:
        return None
    names = [f"memory {i}" for i in range(memory)] + ["ofa"]
    if _media_is_scarce(row):
        names += [f"media {i}" for i in range(row["compute_slices"])]
    return Ruler(units=len(names), memory_units=memory, names=tuple(names))


def _media_is_scarce(row: _BoardRow) -> bool:
    """Tell whether one instance can take media engines away from another of this board.

    Elsewhere each instance has the engines of its own slices: memory slices keep them apart.
    """
    return any(_MEDIA_VARIANTS & set(profile["attributes"]) for profile in row["profiles"])


def _profile(profile: _ProfileRow, row: _BoardRow, ruler: Ruler | None) -> Profile:
    return Profile(
        name=profile["name"],
        id=profile["id"],
        nvml_profile=profile["nvml_profile_index"],
        compute_slices=profile["compute_slices"],
        memory_slices=profile["memory_slices"],
        memory_mib=profile["memory_mib"],
        share=Fraction(profile["compute_slices"], row["compute_slices"]),
        attributes=frozenset(profile["attributes"]),
        max_instances=profile["max_instances"],
        engines=Engines(
            copy_engines=profile["copy_engines"],
            decoders=profile["decoders"],
            encoders=profile["encoders"],
            jpeg=profile["jpeg"],
            ofa=profile["ofa"],
        ),
        sm=profile["sm"],
        placements=_placements(profile, row, ruler),
    )


def _placements(profile: _ProfileRow, row: _BoardRow, ruler: Ruler | None) -> tuple[Placement, ...]:
    places: Sequence[tuple[int, int]] = profile["placements"] or ()
    if ruler is None:
        return ()
    return tuple(
        Placement(
            profile=profile["name"],
            start=start,
            size=size,
            mask=_mask(ruler, row["compute_slices"], set(profile["attributes"]), start, size),
        )
        for start, size in places
    )


def _mask(ruler: Ruler, compute_slices: int, attributes: set[str], start: int, size: int) -> int:
    """Return the units that an instance takes: its memory slices and the engines its name says."""
    memory = ruler.memory_units
    if size == memory:
        return ruler.mask
    mask = span(start, size)
    if attributes & {"me", "me.all"}:
        mask |= 1 << memory
    has_media_units = ruler.units > memory + 1
    if has_media_units and "me.all" in attributes:
        mask |= span(memory + 1, compute_slices)
    elif has_media_units and "-me" not in attributes:
        grid = memory // compute_slices
        mask |= span(memory + 1 + start // grid, size // grid)
    return mask
