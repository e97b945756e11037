"""Who has what when, of all GPUs of one model at once: for windows that need the gaps.

Time is cut into buckets. For each bucket there is one long whole number with a lane of a few bits
for each GPU: what is taken of it at some instant of the bucket. Which GPUs may have room in a
window is then a few ``or`` of long numbers, however many GPUs there are. GPUs with room in all
buckets that the window touches have it for certain; those with room in the buckets within it may
have, and are looked at one by one.

A lane's bits are units of a MIG GPU; of all others "at least so many units are taken", for one
unit, the sevenths, and all. What changes is noted, and taken up when somebody asks: a pool in which
nobody asks for gaps pays nothing.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from apportion.placement.models import Model
from apportion.placement.orders import Order
from apportion.placement.state import FOREVER, NEVER, GpuState

_BUCKETS: Final = 256
_LEAST: Final = 2**20
"""The shortest bucket, about a second in microseconds."""
_STALE: Final = 64
"""After how many buckets of the past the calendar is begun anew."""
_RUN: Final = 16
_BYTE: Final = 8

Ways = list[int]
"""Masks of a lane, one for each way to serve a request: there is room where one is clear."""


class Calendar:
    """The GPUs of one model on which something is, or was, held."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._counts = sorted({1, *(-(-model.ruler * part // 7) for part in range(1, 8))})
        """Bit ``n`` of a lane is set where at least this many units are taken."""
        bits = len(model.units) if model.split == "mig" else len(self._counts)
        self._bytes = -(-bits // _BYTE) or 1
        self._rows: list[GpuState] = []
        self._row: dict[int, int] = {}
        self._lanes: list[int] = []
        self._runs: list[int | None] = []
        """What is taken in any of `_RUN` buckets, where that is known."""
        self._base = self._width = 0
        self._changed: list[tuple[GpuState, int, int]] = []
        self._tables: dict[tuple[int, ...], bytes] = {}
        """Of each set of ways that was asked for: which lanes have one of them clear."""

    # -- keeping it --------------------------------------------------------------------------------

    def note(self, gpu: GpuState, start: int, end: int) -> None:
        """Note that what is held of a GPU in [start, end) is other than before."""
        if gpu.id not in self._row:
            self._row[gpu.id] = len(self._rows)
            self._rows.append(gpu)
        if self._lanes:
            self._changed.append((gpu, start, end))
            if len(self._changed) > len(self._rows) + _BUCKETS:
                # Nobody has asked for long: it is cheaper to begin anew than to keep up.
                self._lanes, self._changed = [], []

    def _catch_up(self, now: int) -> None:
        if not self._lanes or now >= self._base + _STALE * self._width:
            self._begin(now)
        for gpu, start, end in self._changed:
            at = _BYTE * self._bytes * self._row[gpu.id]
            first, last = self._bucket(start), self._bucket(end - 1)
            taken = self._taken(gpu, first, last)
            for bucket in range(first, last + 1):
                lane = self._lanes[bucket] >> at & self._full
                if lane != taken[bucket - first]:
                    self._lanes[bucket] ^= (lane ^ taken[bucket - first]) << at
                    self._runs[bucket // _RUN] = None
        self._changed = []

    def _begin(self, now: int) -> None:
        """Cut time anew, from now to the last end that is known."""
        self._rows = [gpu for gpu in self._rows if gpu.held]
        self._row = {gpu.id: row for row, gpu in enumerate(self._rows)}
        ends = (held.end for gpu in self._rows for held in gpu.held.values())
        last = max((end for end in ends if end < FOREVER), default=now)
        self._base, self._width = now, max(_LEAST, -(now - last) // (_BUCKETS - 1))
        size = self._bytes
        columns = [bytearray(size * len(self._rows)) for _ in range(_BUCKETS)]
        for row, gpu in enumerate(self._rows):
            for column, taken in zip(columns, self._taken(gpu, 0, _BUCKETS - 1), strict=True):
                if taken:
                    column[size * row : size * (row + 1)] = taken.to_bytes(size, "little")
        self._lanes = [int.from_bytes(column, "little") for column in columns]
        self._runs = [None] * (_BUCKETS // _RUN)
        self._changed = []

    @property
    def _full(self) -> int:
        return (1 << _BYTE * self._bytes) - 1

    def _bucket(self, instant: int) -> int:
        return min(max(0, (instant - self._base) // self._width), _BUCKETS - 1)

    def _bounds(self, bucket: int) -> tuple[int, int]:
        """Return when a bucket starts and ends; the first has no start, the last no end."""
        start = self._base + bucket * self._width
        last = bucket == _BUCKETS - 1
        return start if bucket else NEVER, FOREVER if last else start + self._width

    def _taken(self, gpu: GpuState, first: int, last: int) -> list[int]:
        """Return a GPU's lane in each of some buckets."""
        lanes = [0] * (last - first + 1)
        for start, end, units in gpu.taken():
            lane = self._lane(units)
            begins, ends = self._bucket(start), self._bucket(end - 1)
            for bucket in range(max(first, begins), min(last, ends) + 1):
                lanes[bucket - first] |= lane
        return lanes

    def _lane(self, units: int) -> int:
        """Return the lane of a mask of MIG units, or of a number of units that are taken."""
        if self._model.split == "mig":
            return sum(1 << at for at, unit in enumerate(self._model.units) if units >> unit & 1)
        return (1 << bisect_right(self._counts, units)) - 1

    # -- asking ------------------------------------------------------------------------------------

    def roomy(
        self, units: int, parts: Sequence[int], window: tuple[int, int, int]
    ) -> Iterator[GpuState]:
        """Yield the GPUs that may have room in a window, those first that surely have.

        What is wanted are so many units, or of MIG one of some instances by their places in the
        model.
        """
        start, end, now = window
        self._catch_up(now)
        first, last = self._bucket(start), self._bucket(end - 1)
        within = range(
            first if self._bounds(first)[0] >= start else first + 1,
            (last if self._bounds(last)[1] <= end else last - 1) + 1,
        )
        taken = self._taken_within(within)
        certain, possible = self._ways(units, parts)
        sure = self._clear(taken | self._lanes[first] | self._lanes[last], certain)
        yield from self._found(sure)
        maybe = self._clear(taken, possible)
        known = set(self._found(sure)) if 1 in sure else set[GpuState]()
        for gpu in self._found(maybe):
            if gpu not in known and self._has(gpu, units, parts, start, end):
                yield gpu

    def _has(self, gpu: GpuState, units: int, parts: Sequence[int], start: int, end: int) -> bool:
        """Tell whether one GPU has room in a window."""
        if self._model.split == "mig":
            busy = gpu.busy(start, end)
            return any(not self._model.parts[part].units & busy for part in parts)
        room, holders = gpu.room(start, end)
        return room >= units and holders > 0

    def _taken_within(self, buckets: range) -> int:
        taken = 0
        bucket = buckets.start
        while bucket < buckets.stop:
            if bucket % _RUN or bucket + _RUN > buckets.stop:
                taken |= self._lanes[bucket]
                bucket += 1
                continue
            run = self._runs[bucket // _RUN]
            if run is None:
                run = 0
                for lanes in self._lanes[bucket : bucket + _RUN]:
                    run |= lanes
                self._runs[bucket // _RUN] = run
            taken |= run
            bucket += _RUN
        return taken

    def _ways(self, units: int, parts: Sequence[int]) -> tuple[Ways, Ways]:
        """Return the ways that are certain to serve what is wanted, and those that may."""
        if self._model.split == "mig":
            ways = [self._lane(self._model.parts[part].units) for part in parts]
            return ways, ways
        most = self._model.ruler - units
        if most < 0:
            return [], []
        possible = bisect_left(self._counts, most + 1)
        certain = bisect_right(self._counts, most + 1) - 1
        return [1 << certain], [1 << possible if possible < len(self._counts) else 0]

    def _clear(self, taken: int, ways: Ways) -> bytes:
        """Return a byte a row, 1 where one of the ways is clear."""
        size = self._bytes
        lanes = taken.to_bytes(size * len(self._rows), "little")
        if size == 1:
            key = tuple(ways)
            table = self._tables.get(key)
            if table is None:
                table = bytes(any(not lane & way for way in ways) for lane in range(256))
                self._tables[key] = table
            return lanes.translate(table)
        starts = range(0, len(lanes), size)
        each = (int.from_bytes(lanes[at : at + size], "little") for at in starts)
        return bytes(any(not lane & way for way in ways) for lane in each)

    def _found(self, clear: bytes) -> Iterator[GpuState]:
        row = clear.find(1)
        while row >= 0:
            yield self._rows[row]
            row = clear.find(1, row + 1)


class Calendars:
    """One calendar a model, opened when the first window is asked for that needs one."""

    def __init__(self) -> None:
        self._of: dict[Model, Calendar] = {}
        self._open = False

    def note(self, gpu: GpuState, start: int, end: int) -> None:
        """Note that what is held of a GPU in [start, end) is other than before."""
        if self._open and gpu.state is not None:
            model = gpu.state.model
            calendar = self._of.get(model)
            if calendar is None:
                calendar = self._of[model] = Calendar(model)
            calendar.note(gpu, start, end)

    def close(self) -> None:
        """Forget all: the fleet has changed."""
        self._of = {}
        self._open = False

    def roomy(
        self, order: Order, window: tuple[int, int, int], gpus: Iterable[GpuState]
    ) -> Iterator[GpuState]:
        """Yield the GPUs that may have room for a piece of an order; ``gpus`` are all there are."""
        if not self._open:
            self._open = True
            for gpu in gpus:
                if gpu.held:
                    self.note(gpu, window[2], window[2] + 1)
        for model, calendar in self._of.items():
            if order.takes(model):
                yield from calendar.roomy(order.need.units, order.parts_of(model), window)
