"""From the package's table of boards to what the simulated driver answers.

What no source says is made up so that it fits: memory and engines of a larger profile are those of
the smallest times its slices.
"""

from dataclasses import dataclass
from typing import Final

from apportion.errors import InvalidStateError
from apportion.geometry import Board as KnownBoard
from apportion.geometry import Profile as KnownProfile
from apportion.geometry import board_by_key
from apportion.testing.nvml import layout

# NVML's number of an architecture, and the CUDA compute capability of its data-centre boards.
_ARCHITECTURES: Final = {"ampere": (7, 8, 0), "hopper": (9, 9, 0), "blackwell": (10, 10, 0)}
_RTX_BLACKWELL: Final = (10, 12, 0)

# How wide a compute instance may be, by the GPU instance's compute slices; their profile ids.
_WIDTHS: Final = {1: (1,), 2: (1, 2), 3: (1, 2, 3), 4: (1, 2, 4), 7: (1, 2, 3, 4, 7)}
_COMPUTE_IDS: Final = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A product as a driver names it. ``board`` is a key of the package's table, None: no MIG."""

    name: str
    board: str | None
    memory_mib: int
    pci_device_id: int


def fill_board(row: layout.Board, model: Model) -> None:
    """Write a board's answers; InvalidStateError where nobody knows where its profiles may lie."""
    row.name = model.name.encode()
    if model.board is None:
        row.architecture, row.compute_major, row.compute_minor = 8, 8, 9
        return
    board = board_by_key(model.board)
    if not board.placements_known:
        raise InvalidStateError(
            f"{board.model} cannot be simulated: where its profiles may lie is not known"
        )
    capability = _RTX_BLACKWELL if "RTX" in board.model else _ARCHITECTURES[board.architecture]
    row.architecture, row.compute_major, row.compute_minor = capability
    row.mode_needs_reset = board.mode_change_needs_reset
    row.mode_survives_reboot = board.mode_survives_reboot
    row.asked_without_mode = not board.mode_change_needs_reset
    row.slices = board.compute_slices
    row.profile_count = len(board.profiles)
    row.full = _full(board)
    for at, profile in enumerate(board.profiles):
        _fill_profile(row.profiles[at], board, profile)


def _full(board: KnownBoard) -> int:
    """Return the row of the profile that has all engines: the whole board, plain."""
    return next(
        at
        for at, profile in enumerate(board.profiles)
        if profile.compute_slices == board.compute_slices and not profile.attributes
    )


def _fill_profile(row: layout.Profile, board: KnownBoard, profile: KnownProfile) -> None:
    smallest = board.profiles[0]
    slices = profile.compute_slices
    each = smallest.engines
    engines = profile.engines
    row.number = profile.nvml_profile or 0
    row.id = profile.id or 0
    row.slices = slices
    row.instances = profile.max_instances
    row.multiprocessors = profile.sm or slices * (smallest.sm or 1)
    row.copy_engines = _known(engines.copy_engines, slices, each.copy_engines)
    row.decoders = _known(engines.decoders, slices, each.decoders)
    row.encoders = _known(engines.encoders, slices, each.encoders)
    row.jpegs = _known(engines.jpeg, slices, each.jpeg)
    row.ofas = _known(engines.ofa, slices, each.ofa)
    row.memory_mib = _known(profile.memory_mib, profile.memory_slices or 0, smallest.memory_mib)
    row.name = profile.name.encode()
    row.placement_count = len(profile.placements)
    for at, place in enumerate(profile.placements):
        row.placements[at] = (place.start, place.size)
    widths = _WIDTHS[slices]
    row.compute_count = len(widths)
    for at, width in enumerate(widths):
        _fill_compute(row.compute[at], row, smallest, profile.name, width)


def _known(figure: int | None, slices: int, each: int | None) -> int:
    return figure if figure is not None else slices * (each or 0)


def _fill_compute(
    row: layout.ComputeProfile, gi: layout.Profile, smallest: KnownProfile, name: str, width: int
) -> None:
    whole = width == gi.slices
    step = 1 << (width - 1).bit_length()
    starts = [start for start in range(0, gi.slices, step) if start + width <= gi.slices]
    row.id = _COMPUTE_IDS[width]
    row.slices = width
    row.instances = row.placement_count = len(starts)
    row.multiprocessors = gi.multiprocessors if whole else width * (smallest.sm or 1)
    row.name = (name if whole else f"{width}c.{name}").encode()
    for at, start in enumerate(starts):
        row.placements[at] = (start, width)
