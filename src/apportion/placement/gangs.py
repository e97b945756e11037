"""Gangs: several requests that may lie on different nodes, placed whole or not at all.

Members are placed one after the other, each held for a moment beside those before it. A later
member may be given room by moving what has not begun: also pieces of members before it, whose
offers then say where those lie in the end.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from apportion.placement.asks import Ask
from apportion.placement.offers import HeldKey, Move, Offer
from apportion.placement.policies import PolicyName
from apportion.placement.state import Held, HostHeld
from apportion.placement.verdicts import Verdict

if TYPE_CHECKING:
    from apportion.placement.index import PoolIndex

_MEMBER: Final = "gang/"
"""Who holds, for a moment, what a member gets."""


class Gang:
    """The members placed so far, and what was moved for them."""

    def __init__(self, index: "PoolIndex") -> None:
        self._index = index
        self.offers: list[Offer] = []
        """Of each member, as things lie with all of them in place."""
        self._moved: dict[tuple[int, HeldKey], Held] = {}
        """Bookings of others that were moved, as they were."""

    def place(
        self, asks: Sequence[Ask], start: int, end: int, now: int, policy: PolicyName
    ) -> tuple[Offer, ...] | Verdict:
        """Place all members, or say why one has no room."""
        for ask in asks:
            answer = self._index.place(ask, start, end, now, policy)
            if isinstance(answer, Verdict):
                return answer
            self.hold(answer, ask, start, end)
        return tuple(self.offers)

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
        for (gpu, key), held in self._moved.items():
            self._index.book(gpu, key, held)
