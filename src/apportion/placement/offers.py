"""What the search answers when it finds room."""

from typing import Final, NamedTuple

HeldKey = tuple[str, int]
"""Who holds, and which of its pieces: (reservation or partition id, piece number)."""


PARTITION: Final = "partition:"
"""How the name of every change of what a GPU is cut into begins: no reservation's id does."""


class Piece(NamedTuple):
    """Units of one GPU for one device request; ``atom`` where the piece is a whole atom."""

    device: int
    gpu: int
    units: int
    atom: int | None
    generation: int


class Move(NamedTuple):
    """A booking that has not begun gets other units of its GPU, so that the new one fits."""

    gpu: int
    key: HeldKey
    units: int


class Offer(NamedTuple):
    """Room on one node: pieces, and the moves that make it.

    ``leftover`` is how many units of the touched GPUs stay free: the smaller, the tighter the fit.
    """

    node: int
    pieces: tuple[Piece, ...]
    moves: tuple[Move, ...] = ()
    leftover: int = 0
