"""Making room by moving one: which reservation has to lie elsewhere so that an ask finds room.

Each that may be moved is lifted in turn. Where its node then has room for the ask, and it finds
another place beside it, that is a way; of all ways the one that takes least from requests to come
is chosen. Nothing is held or moved afterwards: what is told is for whoever does it.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from apportion.placement.asks import Ask
from apportion.placement.offers import HeldKey, Offer
from apportion.placement.search import STEPS_MIN, SearchExhaustedError, place_on
from apportion.placement.state import GpuState, Held, HostHeld, NodeState

if TYPE_CHECKING:
    from apportion.placement.index import PoolIndex

LOOKED_AT: Final = 2_000
"""No more reservations than these are lifted: a pool may have hundreds of thousands."""
_WEIGHED: Final = 100
"""How many ways are weighed against each other."""
_ASKING: Final = "move/ask"
_MOVED: Final = "move/moved"


@dataclass(frozen=True, slots=True)
class Movable:
    """A reservation that may lie elsewhere: what it asked for, and the window it is to have there.

    ``gpus`` are those on which it holds something, all of one node.
    """

    holder: str
    ask: Ask
    gpus: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Relief:
    """``moved`` goes to ``to``; then ``offer`` is free for the ask.

    ``loss`` is what requests to come lose by both, in thousandths of a GPU: it may be negative.
    """

    moved: Movable
    to: Offer
    offer: Offer
    loss: int


@dataclass(frozen=True, slots=True)
class _Lifted:
    """All that one reservation holds, in hand."""

    node: NodeState
    pieces: Sequence[tuple[GpuState, HeldKey, Held]]
    host: HostHeld | None


def with_one_move(
    index: "PoolIndex", ask: Ask, window: tuple[int, int, int], movable: Iterable[Movable]
) -> Relief | None:
    """Return the best way to make room for an ask in (start, end, now) by moving one of some."""
    ways = _ways(index, ask, window, islice(movable, LOOKED_AT))
    return min(islice(ways, _WEIGHED), key=lambda way: way.loss, default=None)


def _ways(
    index: "PoolIndex", ask: Ask, window: tuple[int, int, int], movable: Iterable[Movable]
) -> Iterator[Relief]:
    for each in movable:
        lifted = _lifted(index, each)
        if lifted is None:
            continue
        with _away(lifted):
            offer = _fits(lifted.node, ask, window)
        # Slots of others that would have to be dealt again are more than one move.
        if offer is not None and not offer.moves:
            relief = _relief(index, each, lifted, (ask, offer, window))
            if relief is not None:
                yield relief


def _relief(
    index: "PoolIndex",
    moved: Movable,
    lifted: _Lifted,
    asking: tuple[Ask, Offer, tuple[int, int, int]],
) -> Relief | None:
    """Try it in the picture, weigh it, and leave the picture as it was."""
    ask, offer, (start, end, now) = asking
    touched = {gpu.id for gpu, _, _ in lifted.pieces} | {piece.gpu for piece in offer.pieces}
    for gpu, key, _ in lifted.pieces:
        index.free(gpu.id, key)
    index.free_host(lifted.node.id, moved.holder)
    _hold(index, _ASKING, ask, offer, (start, end))
    to = index.place(moved.ask, moved.start, moved.end, now)
    loss = 0
    if isinstance(to, Offer) and not to.moves:
        _hold(index, _MOVED, moved.ask, to, (moved.start, moved.end))
        touched |= {piece.gpu for piece in to.pieces}
        loss -= sum(_worth(index.gpu(each)) for each in touched)
        _let_go(index, _MOVED, to)
    _let_go(index, _ASKING, offer)
    for gpu, key, held in lifted.pieces:
        index.book(gpu.id, key, held)
    if lifted.host is not None:
        index.book_host(lifted.node.id, moved.holder, lifted.host)
    if not isinstance(to, Offer) or to.moves:
        return None
    return Relief(moved, to, offer, loss + sum(_worth(index.gpu(each)) for each in touched))


def _lifted(index: "PoolIndex", moved: Movable) -> _Lifted | None:
    gpus = [index.gpu(each) for each in moved.gpus]
    pieces = [
        (gpu, key, held) for gpu in gpus for key, held in gpu.held.items() if key[0] == moved.holder
    ]
    standing = gpus[0].standing if gpus else None
    if standing is None or not pieces:
        # A picture that lags behind, or a node that is not well: nothing to reckon with.
        return None
    return _Lifted(standing.node, pieces, standing.node.held.get(moved.holder))


@contextmanager
def _away(lifted: _Lifted) -> Generator[None]:
    """Take what is lifted off its node for a look; no order of the pool is touched."""
    holder = lifted.pieces[0][1][0]
    for gpu, key, _ in lifted.pieces:
        gpu.drop(key)
    lifted.node.drop(holder)
    try:
        yield
    finally:
        for gpu, key, held in lifted.pieces:
            gpu.put(key, held)
        if lifted.host is not None:
            lifted.node.put(holder, lifted.host)


def _fits(node: NodeState, ask: Ask, window: tuple[int, int, int]) -> Offer | None:
    try:
        return place_on(node, ask, *window, steps=STEPS_MIN)
    except SearchExhaustedError:
        return None


def _hold(index: "PoolIndex", holder: str, ask: Ask, offer: Offer, window: tuple[int, int]) -> None:
    for at, piece in enumerate(offer.pieces):
        index.book(piece.gpu, (holder, at), Held(*window, piece.units))
    if ask.vcpu_milli or ask.memory_mib:
        index.book_host(offer.node, holder, HostHeld(*window, ask.vcpu_milli, ask.memory_mib))


def _let_go(index: "PoolIndex", holder: str, offer: Offer) -> None:
    for at, piece in enumerate(offer.pieces):
        index.free(piece.gpu, (holder, at))
    index.free_host(offer.node, holder)


def _worth(gpu: GpuState) -> int:
    if gpu.state is None or gpu.standing is None:
        return 0
    return gpu.state.worths[gpu.standing.host]
