"""Pictures of a server's GPUs: what each is cut into, and who holds what."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from apportion.cli.draw import Cell, can_draw_boxes, draw_gpu
from apportion.cli.output import wants_colour
from apportion.geometry.catalog import board_by_key
from apportion.quantities.units import from_multirange, span

if TYPE_CHECKING:
    from apportion.nodes.schemas import AtomView, GpuView

_SPLIT: Final = {"none": "whole", "mig": "MIG", "slots": "slots", "shares": "shares"}


def title(gpu: "GpuView") -> str:
    """Name a GPU for people: ``dgx-01 GPU 3: NVIDIA H100 80GB HBM3, MIG``."""
    text = f"{gpu.node} GPU {gpu.index}: {gpu.product}, {_SPLIT[gpu.split]}"
    return (
        text if gpu.unbookable_reason is None else f"{text} (unbookable: {gpu.unbookable_reason})"
    )


def picture(
    gpu: "GpuView", atoms: "Sequence[AtomView]", holders: Mapping[str, str], *, free: str | None
) -> list[str]:
    """Draw one GPU with what it is cut into and who holds what of it.

    ``holders`` are labels by units, as bookings write them (`label`); ``atoms`` the GPU's own.
    ``free`` is what to call the rest, None where it was not looked at. Engines and seats are not
    drawn: they have no place among memory slices, slots or shares. Where instances are made on
    demand only those are drawn that are held or there: all other places are merely possible.
    """
    units = _units(gpu)
    every = span(0, units)
    profiles = [
        (atom, from_multirange(atom.units) & every) for atom in atoms if atom.class_ == "gpu.mig"
    ]
    masks = [mask for _, mask in profiles]
    possible = sum(mask.bit_count() for mask in masks) > _union(masks).bit_count()
    cut = {mask: atom for atom, mask in profiles if not possible or "migUuid" in atom.attributes}
    held = {from_multirange(text) & every: words for text, words in holders.items()}
    cells = [Cell(label=words, mask=mask) for mask, words in held.items()]
    taken = _union(held)
    left = {mask: atom for mask, atom in cut.items() if not mask & taken}
    cells += [Cell(label=_of_nobody(atom, free), mask=mask) for mask, atom in left.items()]
    rest = every & ~(taken | _union(left))
    if free is not None and possible:
        cells += _kept(profiles, rest)
        rest &= ~_union(cell.mask for cell in cells)
    if rest:
        of_rest = "not cut" if cut and not possible else free or "not shown"
        cells.append(Cell(label=of_rest, mask=rest))
    return draw_gpu(units, cells, colour=wants_colour(), boxes=can_draw_boxes())


def _of_nobody(atom: "AtomView", free: str | None) -> str:
    """Label an instance that nobody holds, or of which nobody looked whether one does."""
    if free is None:
        return _profile(atom)
    return f"{_profile(atom)} {free if atom.bookable else atom.reason}"


def _kept(places: "Sequence[tuple[AtomView, int]]", rest: int) -> Iterator[Cell]:
    """Give the units where nothing can be made, by the reason: a foreign instance, say."""
    bookable = _union(mask for atom, mask in places if atom.bookable)
    reasons: dict[str, int] = {}
    for atom, mask in places:
        kept = mask & rest & ~bookable
        if atom.reason is not None and kept:
            reasons[atom.reason] = reasons.get(atom.reason, 0) | kept
            rest &= ~kept
    yield from (Cell(label=reason, mask=mask) for reason, mask in reasons.items())


def label(profile: str | None, holder: str) -> str:
    """Write what somebody has, where that is an instance of a profile, and who."""
    return holder if profile is None else f"{profile} {holder}"


def profile_there(atoms: "Sequence[AtomView]", units: str) -> str | None:
    """Return the profile of the instance on these units, where that can be told.

    Two profiles may lie on the same units: then the one whose instance is there, if any is.
    """
    there = [atom for atom in atoms if atom.class_ == "gpu.mig" and atom.units == units]
    if len(there) > 1:
        there = [atom for atom in there if "migUuid" in atom.attributes]
    return _profile(there[0]) if len(there) == 1 else None


def _units(gpu: "GpuView") -> int:
    """Return how many units to draw: of a MIG board the memory slices, else the whole ruler."""
    if gpu.split == "mig":
        ruler = None if gpu.board is None else board_by_key(gpu.board).ruler
        return 1 if ruler is None else ruler.memory_units
    return gpu.ruler


def _profile(atom: "AtomView") -> str:
    return str(atom.attributes["migProfile"])


def _union(masks: Iterable[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union
