"""Pack asks onto few GPUs, largest first, and say of each that does not fit why. Pure.

First-fit decreasing (``ffd``) takes the first GPU with room; ``best`` takes the one that is left
with the least; ``exact`` searches for the fewest GPUs and proves it (see `fewest`). A GPU is split
by one mechanism. MIG instances are packed by their legal placements, not by sums: on an A100
3g + 3g + 1g is 7/7 and cannot exist.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from fractions import Fraction
from typing import Final, NamedTuple

from apportion.errors import InvalidInputError, InvalidStateError
from apportion.geometry import Placement, Profile, place_all, stranded, why_not
from apportion.planning.asks import MOST_GPUS, MOST_HOLDERS, FractionalAsk
from apportion.planning.capabilities import MPS_UNITS, ClusterGpuCaps
from apportion.planning.isolation import Mechanism
from apportion.planning.mechanisms import MechanismChoice, Refusal, decide
from apportion.quantities.shares import exact_text

GREEDY: Final = ("ffd", "best")
EXACT: Final = "exact"
STRATEGIES: Final = (*GREEDY, EXACT)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedAsk:
    """One ask on one GPU. ``ask`` is its place in the input: one label twice stays two asks.

    A MIG instance has ``start`` and ``size`` in memory slices, fixed slots in slots; free shares
    and whole GPUs have None. ``share`` is this GPU's part of what is allocated.
    """

    ask: int
    label: str
    share: Fraction
    mig_profile: str | None = None
    start: int | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedGpu:
    """One GPU; ``mechanism`` None where nothing sits on it.

    ``stranded_share`` is the part of the GPU that nothing can use beside what is there: slice 7
    beside seven 1g, two of 100 MPS units beside seven slots. ``largest_profile`` is the largest
    instance that still fits beside what is there, by memory slices: a sum alone does not tell. None
    where there is none, and on a GPU that is not split by MIG, all of whose free share can be had.
    """

    index: int
    mechanism: Mechanism | None
    placed: tuple[PlacedAsk, ...]
    stranded_share: Fraction
    largest_profile: str | None = None

    @property
    def free_share(self) -> Fraction:
        """Give what is neither allocated nor stranded."""
        return 1 - sum((placed.share for placed in self.placed), self.stranded_share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unplaced:
    """One ask without a place: a stable ``code`` for programs, a ``reason`` for people."""

    ask: int
    label: str
    code: str
    reason: str


class Proof(NamedTuple):
    """How sure it is that a packing is the best.

    No packing with as many asks placed uses fewer GPUs than ``bound``. ``optimal`` says that this
    one uses no more, and that no packing places more asks.
    """

    optimal: bool
    bound: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PackResult:
    """Every GPU with what sits on it, every ask without a place, every choice in input order.

    Only the strategy ``exact`` proves anything.
    """

    gpus: tuple[PackedGpu, ...]
    unplaced: tuple[Unplaced, ...]
    choices: tuple[MechanismChoice | Refusal, ...]
    proof: Proof | None = None

    @property
    def gpus_used(self) -> int:
        """Count the GPUs that hold something."""
        return sum(1 for gpu in self.gpus if gpu.placed)


def bin_pack(
    asks: Iterable[FractionalAsk],
    gpu_count: int,
    caps: ClusterGpuCaps,
    *,
    strategy: str = "ffd",
    time_limit: timedelta | None = None,
) -> PackResult:
    """Pack the asks onto ``gpu_count`` (1 to 10,000) alike GPUs that nothing sits on yet.

    ``time_limit`` is for ``exact`` alone: how long to search for fewer GPUs or for the proof that
    there are none (10 seconds where it is not given).

    Raises InvalidInputError for a bad count, strategy, GPU model or offered profile, and where
    ``exact`` is not installed; what does not fit is never an error but an entry of ``unplaced``.
    """
    if isinstance(gpu_count, bool) or not 1 <= gpu_count <= MOST_GPUS:
        raise InvalidInputError(
            "is out of range", field="gpu_count", given=gpu_count, allowed=f"1 to {MOST_GPUS}"
        )
    if strategy not in STRATEGIES:
        raise InvalidInputError(
            "there is no such strategy",
            field="strategy",
            given=strategy,
            allowed=", ".join(STRATEGIES),
        )
    wanted = tuple(asks)
    labels = [ask.label for ask in wanted]
    choices = tuple(decide(ask, caps) for ask in wanted)
    items = [
        Item(number, choice)
        for number, choice in enumerate(choices)
        if not isinstance(choice, Refusal)
    ]
    items.sort(key=lambda item: -item.choice.allocated_fraction)
    proof = None
    if strategy == EXACT:
        from apportion.planning.fewest import pack_fewest

        packer, proof = pack_fewest(items, gpu_count, caps, time_limit)
    else:
        packer = Packer(gpu_count, caps, strategy)
        packer.add_all(items)
    refused = dict(packer.refused)
    refused.update((n, choice) for n, choice in enumerate(choices) if isinstance(choice, Refusal))
    return PackResult(
        gpus=packer.finish(labels),
        unplaced=tuple(
            Unplaced(ask=n, label=labels[n], code=refusal.code, reason=refusal.sentence)
            for n, refusal in sorted(refused.items(), key=lambda entry: entry[0])
        ),
        choices=choices,
        proof=proof,
    )


@dataclass(frozen=True, slots=True)
class Item:
    """One ask that a mechanism meets; ``number`` is its place in the input."""

    number: int
    choice: MechanismChoice


def _mask(layout: Iterable[Placement]) -> int:
    """Return the units that instances take together."""
    occupied = 0
    for placement in layout:
        occupied |= placement.mask
    return occupied


@dataclass(slots=True)
class Bin:
    """One GPU while it is being filled."""

    index: int
    mechanism: Mechanism | None = None
    items: list[Item] = field(default_factory=list[Item])

    @property
    def free(self) -> Fraction:
        return 1 - sum((item.choice.allocated_fraction for item in self.items), Fraction(0))

    @property
    def slots(self) -> int:
        return sum(item.choice.slots or 0 for item in self.items)


class Packer:
    """The GPUs of one packing and the rules for what one may hold."""

    def __init__(self, gpu_count: int, caps: ClusterGpuCaps, strategy: str) -> None:
        self.bins = [Bin(index) for index in range(gpu_count)]
        self.refused: dict[int, Refusal] = {}
        """Why an item got no place, by its number."""
        self._caps = caps
        self._strategy = strategy
        self._profiles = {profile.name: profile for profile in caps.offered}
        self._layouts: dict[tuple[str, ...], tuple[Placement, ...] | None] = {}

    @property
    def used(self) -> int:
        """Count the GPUs that hold something."""
        return sum(1 for gpu in self.bins if gpu.items)

    def add_all(self, items: Iterable[Item]) -> None:
        """Put each item where the strategy says, or note why it has no place."""
        for item in items:
            refusal = self._add(item)
            if refusal is not None:
                self.refused[item.number] = refusal

    def _add(self, item: Item) -> Refusal | None:
        if item.choice.mechanism is Mechanism.WHOLE:
            return self._add_whole(item)
        try:
            fitting = [gpu for gpu in self._candidates(item) if self._fits(gpu, item)]
        except InvalidStateError as error:
            return Refusal(code="geometry_unknown", sentence=error.message)
        if not fitting:
            return self._why_no_room(item)
        best = self._strategy == "best"
        gpu = min(fitting, key=lambda gpu: (gpu.free if best else 0, gpu.index))
        gpu.mechanism = item.choice.mechanism
        gpu.items.append(item)
        return None

    def finish(self, labels: Sequence[str]) -> tuple[PackedGpu, ...]:
        """Give every GPU with the final places of what sits on it."""
        return tuple(
            PackedGpu(
                index=gpu.index,
                mechanism=gpu.mechanism,
                placed=tuple(self._placed(gpu, labels)),
                stranded_share=self._stranded(gpu),
                largest_profile=self._largest(gpu),
            )
            for gpu in self.bins
        )

    def _add_whole(self, item: Item) -> Refusal | None:
        """Give n whole GPUs or none of them."""
        count = int(item.choice.allocated_fraction)
        empty = [gpu for gpu in self.bins if gpu.mechanism is None]
        if len(empty) < count:
            why = f"{item.choice.note}; " if item.choice.is_fallback else ""
            return Refusal(
                code="no_unsplit_gpu",
                sentence=f"{why}needs {count} GPU{'s' if count > 1 else ''} with nothing on "
                f"{'them' if count > 1 else 'it'}, and {len(empty)} of {len(self.bins)} "
                f"{'is' if len(empty) == 1 else 'are'} left",
            )
        for gpu in empty[:count]:
            gpu.mechanism = Mechanism.WHOLE
            gpu.items.append(item)
        return None

    def _candidates(self, item: Item) -> Iterable[Bin]:
        """Yield the GPUs of the same mechanism and the first empty one: empty GPUs are alike."""
        for gpu in self.bins:
            if gpu.mechanism is item.choice.mechanism:
                yield gpu
            elif gpu.mechanism is None:
                yield gpu
                return

    def _fits(self, gpu: Bin, item: Item) -> bool:
        if item.choice.mechanism is Mechanism.MIG:
            return self._layout([*gpu.items, item]) is not None
        if len(gpu.items) >= MOST_HOLDERS:
            return False
        total = self._caps.slots_per_gpu or self._caps.shares_per_gpu
        if total is not None:
            return gpu.slots + (item.choice.slots or 0) <= total
        return item.choice.allocated_fraction <= gpu.free

    def _layout(self, items: Sequence[Item]) -> tuple[Placement, ...] | None:
        """Place these instances on one GPU by the board's geometry; each set is searched once."""
        key = tuple(item.choice.mig_profile or "" for item in items)
        if key not in self._layouts:
            self._layouts[key] = place_all(self._caps.board, self._of(items))
        return self._layouts[key]

    def _of(self, items: Iterable[Item]) -> list[Profile]:
        return [self._profiles[item.choice.mig_profile or ""] for item in items]

    def _why_no_room(self, item: Item) -> Refusal:
        mechanism = item.choice.mechanism
        alike = [gpu for gpu in self.bins if gpu.mechanism is mechanism]
        if not alike:
            return Refusal(
                code="mechanisms_never_mix",
                sentence=f"every GPU already holds another mechanism than {mechanism}, "
                "and mechanisms never mix on one GPU",
            )
        roomiest = max(alike, key=lambda gpu: gpu.free)
        if mechanism is Mechanism.MIG:
            reason = why_not(self._caps.board, self._of([*roomiest.items, item]))
            return Refusal(
                code="no_placement",
                sentence=f"no GPU has a legal placement left for {item.choice.mig_profile}: "
                f"GPU {roomiest.index}: {reason}",
            )
        if all(len(gpu.items) >= MOST_HOLDERS for gpu in alike):
            return Refusal(
                code="no_seat",
                sentence=f"every GPU has {MOST_HOLDERS} holders, the most that share one",
            )
        return self._short(item, roomiest)

    def _short(self, item: Item, roomiest: Bin) -> Refusal:
        """Say by how much a share does not fit: over by 0.0002 looks the same as full."""
        total = self._caps.slots_per_gpu or self._caps.shares_per_gpu
        if total is not None:
            what = "slots" if self._caps.slots_per_gpu is not None else "shares"
            sentence = (
                f"needs {item.choice.slots} {what}, and no GPU has more than "
                f"{total - roomiest.slots} of {total} free"
            )
        else:
            need = item.choice.allocated_fraction
            sentence = (
                f"{exact_text(need)} of a GPU does not fit: no GPU has more than "
                f"{exact_text(roomiest.free)} free, short by {exact_text(need - roomiest.free)}"
            )
        return Refusal(code="no_room", sentence=sentence)

    def _stranded(self, gpu: Bin) -> Fraction:
        if gpu.mechanism is Mechanism.MPS and self._caps.slots_per_gpu is not None:
            units = self._caps.mps_slot_units * self._caps.slots_per_gpu
            return 1 - Fraction(units, MPS_UNITS)
        layout = self._layout(gpu.items) if gpu.mechanism is Mechanism.MIG else None
        if layout is None:
            return Fraction(0)
        board = self._caps.board
        occupied = _mask(layout)
        used = sum(profile.compute_slices for profile in self._of(gpu.items))
        lost = stranded(board, occupied, compute_used=used).compute_slices or 0
        return Fraction(lost, board.compute_slices)

    def _largest(self, gpu: Bin) -> str | None:
        layout = self._layout(gpu.items) if gpu.mechanism is Mechanism.MIG else None
        if layout is None:
            return None
        occupied = _mask(layout)
        fitting = (
            (max(sizes), profile.compute_slices, -len(profile.name), profile.name)
            for profile in self._caps.offered
            if (sizes := [each.size for each in profile.placements if not each.mask & occupied])
        )
        return max(fitting, default=(0, 0, 0, None))[-1]

    def _placed(self, gpu: Bin, labels: Sequence[str]) -> Iterable[PlacedAsk]:
        layout = self._layout(gpu.items) if gpu.mechanism is Mechanism.MIG else None
        slot = 0
        for position, item in enumerate(gpu.items):
            choice = item.choice
            start = size = None
            if layout is not None:
                start, size = layout[position].start, layout[position].size
            elif self._caps.slots_per_gpu is not None and choice.slots is not None:
                start, size = slot, choice.slots
                slot += choice.slots
            yield PlacedAsk(
                ask=item.number,
                label=labels[item.number],
                share=min(choice.allocated_fraction, Fraction(1)),
                mig_profile=choice.mig_profile,
                start=start,
                size=size,
            )
