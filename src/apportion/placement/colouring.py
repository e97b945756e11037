"""Slots and shares are interchangeable: room is judged by count, and units are re-dealt to fit.

Two bookings of one slot each, one after the other on different slots, must not keep out a third that
runs across both. Bookings that have begun keep their units; all others form an interval graph, which
can be coloured whenever no instant is over-full: deal units in the order of starts, and at each start
the ones in the way are exactly those still running.
"""

from dataclasses import dataclass

from apportion.placement.offers import HeldKey
from apportion.placement.state import GpuState, Held
from apportion.quantities.units import lowest


@dataclass(frozen=True, slots=True)
class Dealt:
    """The new booking's units, and the not yet begun bookings that get others."""

    units: int
    moved: tuple[tuple[HeldKey, int], ...]


def deal(gpu: GpuState, count: int, start: int, end: int, now: int) -> Dealt | None:
    """Find ``count`` units of a slotted or shared GPU for [start, end), re-dealing where needed.

    Returns None when some instant has no room. What has begun by ``now`` is never moved, nor is what
    holds every unit.
    """
    straight = _free(gpu, gpu.busy(start, end), count)
    if straight is not None:
        return Dealt(straight, ())
    if gpu.peak(start, end, gpu.capacity) + count > gpu.ruler:
        return None
    seats = gpu.seats
    if seats and gpu.peak(start, end, seats) >= seats.bit_count():
        return None
    return _redeal(gpu, count, start, end, now)


def _free(gpu: GpuState, busy: int, count: int) -> int | None:
    free = gpu.capacity & ~busy
    if free.bit_count() < count:
        return None
    seats = gpu.seats
    if not seats:
        return lowest(free, count)
    free_seats = seats & ~busy
    return lowest(free, count) | (free_seats & -free_seats) if free_seats else None


def _redeal(gpu: GpuState, count: int, start: int, end: int, now: int) -> Dealt | None:
    new: HeldKey = ("", 0)
    settled: list[Held] = []
    waiting: list[tuple[int, HeldKey, Held]] = [(start, new, Held(start, end, 0))]
    for key, held in gpu.held.items():
        if held.start <= now or held.units < 0:
            settled.append(held)
        else:
            waiting.append((held.start, key, held))
    waiting.sort()
    moved: list[tuple[HeldKey, int]] = []
    units = 0
    for _, key, held in waiting:
        busy = 0
        for other in settled:
            if other.start < held.end and other.end > held.start:
                busy |= other.units
        wanted = count if key == new else (held.units & gpu.capacity).bit_count()
        dealt = held.units if key != new and not held.units & busy else _free(gpu, busy, wanted)
        if dealt is None:
            return None
        settled.append(Held(held.start, held.end, dealt))
        if key == new:
            units = dealt
        elif dealt != held.units:
            moved.append((key, dealt))
    return Dealt(units, tuple(moved))
