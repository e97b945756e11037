"""Gangs: several requests that may lie on different nodes, placed whole or not at all.

Members are placed one after the other, each held for a moment beside those before it. A later
member may be given room by moving what has not begun: also pieces of members before it, whose
offers then say where those lie in the end. Where each is to have a node of its own, all that the
node has is held beside its member. Where one finds no room so, and other places of those before it
could give it some, all ways are gone through (see `arranging`).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final

from apportion.placement.arranging import arrange, is_settled
from apportion.placement.asks import Ask
from apportion.placement.findings import LOOKED_AT
from apportion.placement.offers import HeldKey, Move, Offer
from apportion.placement.policies import PolicyName
from apportion.placement.search import SearchExhaustedError, offer_in
from apportion.placement.state import Held, HostHeld
from apportion.placement.verdicts import LASTING, Verdict, verdict
from apportion.placement.windows import starts_within
from apportion.quantities.units import WHOLE

if TYPE_CHECKING:
    from apportion.placement.index import PoolIndex

_MEMBER: Final = "gang/"
"""Who holds, for a moment, what a member gets."""
_KNOWN: Final = LASTING | {"layout_change_scheduled"}
"""What keeps a node from a gang however its members lie."""
_REST: Final[HeldKey] = ("rest", 0)
"""Who holds, for a moment, what a member leaves of its node."""


class Gang:
    """The members placed so far, and what was moved for them."""

    def __init__(self, index: "PoolIndex") -> None:
        self._index = index
        self.offers: list[Offer] = []
        """Of each member, as things lie with all of them in place."""
        self._moved: dict[tuple[int, HeldKey], Held] = {}
        """Bookings of others that were moved, as they were."""
        self._closed: list[int] = []
        """Nodes all of which is held."""

    def place(
        self,
        asks: Sequence[Ask],
        start: int,
        end: int,
        now: int,
        policy: PolicyName,
        *,
        apart: bool = False,
    ) -> tuple[Offer, ...] | Verdict:
        """Place all members, or say why one has no room beside those before it."""
        for ask in asks:
            answer = self._index.place(ask, start, end, now, policy)
            if isinstance(answer, Verdict):
                refusal = replace(answer, placed=len(self.offers))
                if is_settled(asks, apart=apart):
                    return refusal
                self.let_go()
                return self._arrange(asks, (start, end, now), policy, refusal, apart=apart)
            self.hold(answer, ask, start, end)
            if apart:
                self._close(answer.node, start, end)
        return tuple(self.offers)

    def _arrange(
        self,
        asks: Sequence[Ask],
        window: tuple[int, int, int],
        policy: PolicyName,
        refusal: Verdict,
        *,
        apart: bool,
    ) -> tuple[Offer, ...] | Verdict:
        """Place members that did not fit one after the other, wherever that can be."""
        start, end, _ = window
        index = self._index
        nodes = (each for ask in dict.fromkeys(asks) for each in index.roomy(ask, window, policy))
        looked_at = {node.id: node for node in islice(nodes, 2 * LOOKED_AT)}
        try:
            found = arrange(looked_at.values(), asks, (start, end), apart=apart)
        except SearchExhaustedError:
            return _unknown(refusal)
        for ask, (node_id, chosen) in zip(asks, found or (), strict=False):
            offer = offer_in(index.nodes[node_id], ask, chosen, window)
            if offer is None:
                return refusal
            self.hold(offer, ask, start, end)
        return tuple(self.offers) if found else refusal

    def hold(self, offer: Offer, ask: Ask, start: int, end: int) -> None:
        """Take one more member, with the moves that make its room."""
        self.offers.append(offer._replace(moves=()))
        for move in offer.moves:
            self._move(move)
        holder = f"{_MEMBER}{len(self.offers) - 1}"
        for at, piece in enumerate(offer.pieces):
            self._index.book(piece.gpu, (holder, at), Held(start, end, piece.units))
        host = HostHeld(start, end, ask.vcpu_milli, ask.memory_mib)
        self._index.book_host(offer.node, holder, host)

    def _close(self, node_id: int, start: int, end: int) -> None:
        """Hold all of a node, so that no other member is placed on it."""
        node = self._index.nodes[node_id]
        self._closed.append(node_id)
        for gpu in node.gpus:
            self._index.book(gpu.id, _REST, Held(start, end, WHOLE))
        rest = HostHeld(start, end, node.vcpu_milli, node.memory_mib)
        self._index.book_host(node_id, _REST[0], rest)

    def _open(self, node_id: int) -> None:
        for gpu in self._index.nodes[node_id].gpus:
            self._index.free(gpu.id, _REST)
        self._index.free_host(node_id, _REST[0])

    def _move(self, move: Move) -> None:
        """Move a booking; of each, the last member that moves it tells where it goes."""
        holder, at = move.key
        held = self._index.gpu(move.gpu).held[move.key]
        self._index.book(move.gpu, move.key, Held(held.start, held.end, move.units))
        if holder.startswith(_MEMBER):
            number = int(holder.removeprefix(_MEMBER))
            pieces = list(self.offers[number].pieces)
            pieces[at] = pieces[at]._replace(units=move.units)
            self.offers[number] = self.offers[number]._replace(pieces=tuple(pieces))
            return
        self._moved.setdefault((move.gpu, move.key), held)
        for number, offer in enumerate(self.offers):
            others = tuple(m for m in offer.moves if (m.gpu, m.key) != (move.gpu, move.key))
            self.offers[number] = offer._replace(moves=others)
        self.offers[-1] = self.offers[-1]._replace(moves=(*self.offers[-1].moves, move))

    def let_go(self) -> None:
        """Give all back."""
        for number, offer in enumerate(self.offers):
            holder = f"{_MEMBER}{number}"
            for at, piece in enumerate(offer.pieces):
                self._index.free(piece.gpu, (holder, at))
            self._index.free_host(offer.node, holder)
        for node_id in self._closed:
            self._open(node_id)
        for (gpu, key), held in self._moved.items():
            self._index.book(gpu, key, held)
        self.offers.clear()
        self._closed.clear()
        self._moved.clear()


def _unknown(refusal: Verdict) -> Verdict:
    """Say of the nodes that are not refused for good that they may have room, for all we know."""
    counts = Counter({each.code: each.count for each in refusal.reasons if each.code in _KNOWN})
    counts["search_exhausted"] = refusal.nodes - counts.total()
    return replace(verdict(refusal.nodes, counts), placed=refusal.placed)


def gang_opening(
    index: "PoolIndex",
    asks: Sequence[Ask],
    length: int,
    starts: tuple[int, int, int],
    *,
    apart: bool = False,
) -> int | None:
    """Return the first start with room for a gang for ``length``; None where none was found.

    ``starts`` are the first and the last that will do, and now. Room appears only when something
    held ends: at most the first `LOOKED_AT` such instants are tried.
    """
    first, last, now = starts
    # Listed before any is tried: trying holds and lets go, which adds ends.
    ends = [end for end, _ in islice(index.ends(), LOOKED_AT)]
    for at in starts_within(ends, max(first, now), last):
        answer = index.place_gang(asks, at, at + length, now, apart=apart)
        if not isinstance(answer, Verdict):
            return at
    return None
