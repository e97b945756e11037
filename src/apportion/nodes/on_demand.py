"""What there is to book of a GPU whose instances are made on demand: pure.

Every legal place of its board is an atom, whether an instance is there or not; what only an
instance has (its UUID and ids) appears when the node reports it. The GPU itself is an atom as well
where the MIG mode can be switched without a reset (Hopper and newer), or its pool lets nodes reset
an idle GPU; elsewhere either the GPU is, while MIG is off, or its places are, while it is on.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

from apportion.geometry import Board
from apportion.nodes.schemas import DriverProfile, GpuReport
from apportion.nodes.specs import AtomSpec, Attributes, GpuSpec, atom_key
from apportion.quantities.units import from_multirange, to_multirange

NEEDS_RESET: Final = "mig_mode_needs_reset"
"""The MIG mode of this board is switched by a reset, which its pool does not allow."""
_WITH_RESET: Final = ("reset", "reboot")
FOREIGN: Final = "foreign_instance"
"""An instance is there that nobody asked for: it is left alone, and its place with it."""

NOT_IN_DRIVER: Final = "not_in_driver"
"""The table of boards has this place, and the node's driver does not: the driver is right."""

Told = Mapping[str, DriverProfile]
"""The profiles that a node's driver has for a GPU, by name; empty where it has not said."""


def keeps_its_mode(board: Board, mode_change: str) -> bool:
    """Tell whether a board's MIG mode stays as it is, by what its pool lets nodes do for it."""
    return board.mode_change_needs_reset and mode_change not in _WITH_RESET


def places(
    report: GpuReport,
    board: Board,
    common: Attributes,
    reported: Iterable[AtomSpec],
    *,
    keeps_mode: bool,
) -> tuple[AtomSpec, ...]:
    """Return an atom for every legal place of a board, as it is reported where it is.

    An instance that cannot be booked keeps all that overlaps it from being booked.
    """
    reason = NEEDS_RESET if keeps_mode and not report.mig.current else None
    atoms = {atom.key: atom for atom in _legal(report, board, common, reason)}
    for instance in reported:
        atoms[instance.key] = instance
    spoilt = [atom for atom in atoms.values() if atom.reason not in (None, reason)]
    for each in spoilt:
        atoms |= {atom.key: atom for atom in _kept_off(atoms.values(), each)}
    return tuple(atoms.values())


def as_told(atoms: Iterable[AtomSpec], board: Board, told: Told) -> tuple[AtomSpec, ...]:
    """Keep places from being booked that the driver does not have, and promise what it gives."""
    return tuple(_as_told(atom, board, told) for atom in atoms) if told else tuple(atoms)


def _as_told(atom: AtomSpec, board: Board, told: Told) -> AtomSpec:
    if atom.profile is None or "migUuid" in atom.attributes:
        return atom  # it is there, whatever anybody's table says
    there = told.get(atom.profile)
    known = {(each.start, each.size) for each in board.profile(atom.profile).placements}
    driver = () if there is None else [(each.start, each.size) for each in there.placements]
    if there is None or atom.start not in {start for start, _ in known.intersection(driver)}:
        return replace(atom, reason=atom.reason or NOT_IN_DRIVER)
    return replace(atom, attributes={**atom.attributes, "vramGiB": -(-there.memory_mib // 1024)})


def why_not_whole(report: GpuReport, *, keeps_mode: bool) -> str | None:
    """Return why the GPU cannot be booked whole, or None where it can."""
    return NEEDS_RESET if keeps_mode and report.mig.current else None


def without_foreign(gpu: GpuSpec, asked: Collection[str]) -> GpuSpec:
    """Keep from being booked whatever overlaps an instance that nobody asked for.

    ``asked`` are the keys of the atoms that somebody has. An instance that its node says it made
    for us is ours also when nobody has it any more: it is about to go.
    """
    managed = {each.uuid for each in gpu.report.mig.instances if each.managed}
    atoms = {atom.key: atom for atom in gpu.atoms}
    for atom in gpu.atoms:
        uuid = atom.attributes.get("migUuid")
        if uuid is not None and uuid not in managed and atom.key not in asked:
            foreign = replace(atom, reason=atom.reason or FOREIGN)
            atoms[atom.key] = foreign
            atoms |= {each.key: each for each in _kept_off(atoms.values(), foreign)}
    return replace(gpu, atoms=tuple(atoms.values()))


def _kept_off(atoms: Iterable[AtomSpec], by: AtomSpec) -> list[AtomSpec]:
    """Return those of some atoms that overlap one that cannot be booked, with its reason."""
    units = from_multirange(by.units)
    return [
        replace(atom, reason=by.reason)
        for atom in atoms
        if atom.reason is None and from_multirange(atom.units) & units
    ]


def _legal(
    report: GpuReport, board: Board, common: Attributes, reason: str | None
) -> Iterable[AtomSpec]:
    for profile in board.profiles:
        attributes = {**common, "migProfile": profile.name}
        attributes.pop("vramGiB", None)
        if profile.memory_mib is not None:
            attributes["vramGiB"] = -(-profile.memory_mib // 1024)
        for place in profile.placements:
            yield AtomSpec(
                key=atom_key(report, profile, place),
                cls="gpu.mig",
                units=to_multirange(place.mask),
                share=profile.share,
                attributes=attributes,
                reason=reason,
                board=board.key,
                profile=profile.name,
                start=place.start,
            )
