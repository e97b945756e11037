"""Exact search on one node: all pieces of an ask, or nothing."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from apportion.placement.asks import Ask, DeviceAsk
from apportion.placement.colouring import deal
from apportion.placement.offers import HeldKey, Move, Offer, Piece
from apportion.placement.state import GpuState, Held, NodeState

STEPS_MAX: Final = 20_000
"""Tries before a node is given up: different pieces on many GPUs are a packing problem."""


class SearchExhaustedError(Exception):
    """The search on a node was cut short; the node may or may not have room."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to place one piece on one GPU."""

    piece: Piece
    moves: tuple[Move, ...]
    leftover: int


@dataclass(slots=True)
class _Attempt:
    ask: Ask
    start: int
    end: int
    now: int
    steps: int = 0
    tentative: list[tuple[GpuState, HeldKey]] = field(
        default_factory=list[tuple[GpuState, HeldKey]]
    )


def choices(
    gpu: GpuState, device: int, ask: DeviceAsk, start: int, end: int, now: int
) -> Iterator[Choice]:
    """Yield the ways to place one piece on one GPU, the one that keeps most first."""
    if not gpu.bookable:
        return
    match ask.cls:
        case "gpu":
            if gpu.split == "none" and gpu.busy(start, end) == 0 and _selected(gpu, ask):
                yield Choice(Piece(device, gpu.id, -1, gpu.atom, gpu.generation), (), 0)
        case "gpu.mig":
            yield from _instances(gpu, device, ask, start, end)
        case "gpu.slot" | "gpu.share":
            wanted = "slots" if ask.cls == "gpu.slot" else "shares"
            if gpu.split != wanted or not _selected(gpu, ask):
                return
            dealt = deal(gpu, ask.units, start, end, now)
            if dealt is not None:
                left = gpu.ruler - gpu.peak(start, end, gpu.capacity) - ask.units
                moves = tuple(Move(gpu.id, key, units) for key, units in dealt.moved)
                yield Choice(Piece(device, gpu.id, dealt.units, None, gpu.generation), moves, left)


def _selected(gpu: GpuState, ask: DeviceAsk) -> bool:
    return ask.selector.matches({**gpu.group, **gpu.attributes})


def _instances(
    gpu: GpuState, device: int, ask: DeviceAsk, start: int, end: int
) -> Iterator[Choice]:
    busy = gpu.busy(start, end)
    free = [atom for atom in gpu.atoms if not atom.units & busy]
    for atom in free:
        if ask.selector.matches({**gpu.group, **gpu.attributes, **atom.attributes}):
            piece = Piece(device, gpu.id, atom.units, atom.id, gpu.generation)
            yield Choice(piece, (), len(free) - 1)


def place_on(node: NodeState, ask: Ask, start: int, end: int, now: int) -> Offer | None:
    """Place every piece of the ask on this node for [start, end), or return None.

    Raises SearchExhaustedError after `STEPS_MAX` tries. The node is left as it was.
    """
    if not node.healthy or not node.hosts(ask.vcpu_milli, ask.memory_mib, start, end):
        return None
    attempt = _Attempt(ask, start, end, now)
    wanted = [(i, d) for i, d in enumerate(ask.devices) for _ in range(d.count)]
    # The largest pieces first: they have the fewest places, so a dead end shows early.
    wanted.sort(key=lambda item: (-item[1].units, item[0]))
    try:
        found = _extend(attempt, node, wanted, 0, ())
    finally:
        for gpu, key in attempt.tentative:
            gpu.drop(key)
    if found is None:
        return None
    return Offer(
        node.id,
        tuple(choice.piece for choice in found),
        tuple(move for choice in found for move in choice.moves),
        sum(choice.leftover for choice in found),
    )


def _extend(
    attempt: _Attempt,
    node: NodeState,
    wanted: list[tuple[int, DeviceAsk]],
    at: int,
    chosen: tuple[Choice, ...],
) -> tuple[Choice, ...] | None:
    if at == len(wanted):
        return chosen
    device, ask = wanted[at]
    # Pieces of one device request are alike: taking GPUs in one order only loses no solution.
    alike = at > 0 and wanted[at - 1][0] == device
    after = chosen[-1].piece.gpu if alike else -1
    options = [
        choice
        for gpu in node.gpus
        if gpu.id > after or (gpu.id == after and ask.cls not in ("gpu", "gpu.share"))
        for choice in choices(gpu, device, ask, attempt.start, attempt.end, attempt.now)
    ]
    if not alike:
        options.sort(key=lambda choice: choice.leftover)
    for choice in options:
        attempt.steps += 1
        if attempt.steps > STEPS_MAX:
            raise SearchExhaustedError
        if _disturbs(chosen, choice):
            continue
        gpu = next(g for g in node.gpus if g.id == choice.piece.gpu)
        key: HeldKey = ("", at + 1)
        gpu.put(key, Held(attempt.start, attempt.end, choice.piece.units))
        attempt.tentative.append((gpu, key))
        found = _extend(attempt, node, wanted, at + 1, (*chosen, choice))
        if found is not None:
            return found
        gpu.drop(key)
        attempt.tentative.pop()
    return None


def _disturbs(chosen: tuple[Choice, ...], choice: Choice) -> bool:
    """Tell whether a second re-deal would touch a GPU that this ask already re-dealt or uses."""
    if not choice.moves:
        return any(move.gpu == choice.piece.gpu for each in chosen for move in each.moves)
    return any(each.piece.gpu == choice.piece.gpu for each in chosen)
