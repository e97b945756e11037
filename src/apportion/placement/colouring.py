"""Slots and shares are interchangeable: room is judged by count, and units are re-dealt to fit.

Two bookings of one slot each, one after the other on different slots, must not keep out a third
that runs across both. Bookings that have begun keep their units; all others form an interval
graph, which can be coloured whenever no instant is over-full: deal units in the order of starts,
and at each start the ones in the way are exactly those still running.
"""

from collections.abc import Sequence
from typing import NamedTuple

from apportion.placement.offers import HeldKey
from apportion.placement.state import GpuState, Held
from apportion.quantities.units import lowest


class Dealt(NamedTuple):
    """The units of each new piece, and the not yet begun bookings that get others."""

    units: tuple[int, ...]
    moved: tuple[tuple[HeldKey, int], ...] = ()


def deal(gpu: GpuState, counts: Sequence[int], start: int, end: int, now: int) -> Dealt | None:
    """Find pieces of ``counts`` units of a slotted or shared GPU for [start, end).

    What has begun by ``now`` is never moved, nor is what holds every unit: nothing can be in its
    way. There are always units where `GpuState.room` says so; None comes back where it does not, or
    where a picture that lags behind the truth holds more than there is.
    """
    straight = _take_all(gpu, gpu.busy(start, end), counts)
    if straight is not None:
        return Dealt(straight)
    return _redeal(gpu, counts, start, end, now)


def deal_again(gpu: GpuState, now: int) -> tuple[tuple[HeldKey, int], ...] | None:
    """Return who gets which other units where windows of a GPU have come to overlap.

    None where some instant is over-full, or where only what has begun could make way.
    """
    dealt = _redeal(gpu, (), now, now, now)
    return None if dealt is None else dealt.moved


def _take_all(gpu: GpuState, busy: int, counts: Sequence[int]) -> tuple[int, ...] | None:
    pieces: list[int] = []
    for count in counts:
        units = _take(gpu, busy, count)
        if units is None:
            return None
        busy |= units
        pieces.append(units)
    return tuple(pieces)


def _take(gpu: GpuState, busy: int, count: int) -> int | None:
    free = gpu.capacity & ~busy
    if free.bit_count() < count:
        return None
    if not gpu.seats:
        return lowest(free, count)
    seat = gpu.seats & ~busy
    return lowest(free, count) | (seat & -seat) if seat else None


def _redeal(gpu: GpuState, counts: Sequence[int], start: int, end: int, now: int) -> Dealt | None:
    # The new pieces' keys sort before any holder's, so that equal starts have one order.
    fresh = {("", number): Held(start, end, 0) for number in range(len(counts))}
    running = [held for held in gpu.held.values() if held.start <= now]
    waiting = [(key, held) for key, held in gpu.held.items() if held.start > now]
    waiting.extend(fresh.items())
    waiting.sort(key=lambda item: (item[1].start, item[0]))
    dealt: dict[HeldKey, int] = {}
    for key, held in waiting:
        running = [other for other in running if other.end > held.start]
        busy = 0
        for other in running:
            busy |= other.units
        units: int | None = held.units
        if key in fresh:
            units = _take(gpu, busy, counts[key[1]])
        elif held.units & busy:
            units = _take(gpu, busy, (held.units & gpu.capacity).bit_count())
        if units is None:
            return None
        running.append(Held(held.start, held.end, units))
        dealt[key] = units
    moved = ((key, units) for key, units in dealt.items() if key not in fresh)
    return Dealt(
        tuple(dealt[key] for key in fresh),
        tuple((key, units) for key, units in moved if units != gpu.held[key].units),
    )
