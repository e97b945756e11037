"""Why an ask found no room: reasons as data, with counts that add up to the nodes looked at."""

from dataclasses import dataclass, field
from typing import Final

# The order says what to tell first: what the asker can change, then what waiting changes; but where
# waiting can help, what holds for good of other nodes stands behind it (see `verdict`).
HELP: Final[dict[str, str]] = {
    "pool_empty": "add a node: import its inventory into the pool",
    "selector_matches_nothing": "loosen the selector; `apportion atom list` shows what there is",
    "profile_not_in_layout": "ask for a profile that the pool's GPUs are cut into",
    "no_unsplit_gpu": "this pool splits its GPUs; ask for all the units of one instead",
    "mig_mode_needs_reset": "its GPUs switch MIG on or off by a reset only; ask for what they are "
    "now, or another pool",
    "class_not_offered": "ask for a class that `apportion atom list` shows in this pool",
    "larger_than_any_node": "ask for less on one node",
    "units_booked": "wait for a booking to end, or ask for less or a later window",
    "layout_change_scheduled": "ask for a window that is over before, or wait till its GPUs are "
    "cut otherwise; `apportion layout status` shows it",
    "host_resources_short": "ask for less CPU or memory, or wait",
    "gpu_unbookable": "see `apportion atom list --unbookable` for the reason of each",
    "node_unhealthy": "see `apportion node list`",
    "node_stale": "wait for its agent to be heard of again; see `apportion node list --stale`",
    "search_exhausted": "ask for fewer different pieces in one reservation",
}


LASTING: Final = frozenset(
    {
        "pool_empty",
        "selector_matches_nothing",
        "profile_not_in_layout",
        "no_unsplit_gpu",
        "class_not_offered",
        "larger_than_any_node",
        "gpu_unbookable",
        "node_unhealthy",
        "node_stale",
    }
)
"""What holds in every window, whoever has what."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One code of `HELP` and how many nodes it holds for."""

    code: str
    count: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """A refusal: its reasons, the first one to act on first; counts sum to ``nodes``.

    ``placed`` is how many members of a gang had room, beside which the next one has none.
    """

    nodes: int
    reasons: tuple[Reason, ...] = field(default=())
    placed: int = 0

    @property
    def code(self) -> str:
        """The reason to act on first."""
        return self.reasons[0].code

    @property
    def for_good(self) -> bool:
        """Whether it holds for every window, until the fleet changes."""
        return all(reason.code in LASTING for reason in self.reasons)

    @property
    def message(self) -> str:
        """One sentence for people: ``0 of 18 nodes: 11 booked, 7 short of CPU or memory``."""
        if self.nodes == 0:
            return "the pool has no nodes"
        parts = ", ".join(f"{reason.count} {WORDS[reason.code]}" for reason in self.reasons)
        return f"0 of {self.nodes} nodes: {parts}"

    @property
    def hint(self) -> str:
        """What would help."""
        return HELP[self.code]


WORDS: Final[dict[str, str]] = {
    "pool_empty": "the pool has no nodes",
    "selector_matches_nothing": "with nothing that the selector matches",
    "profile_not_in_layout": "not cut into such a profile",
    "no_unsplit_gpu": "with split GPUs only",
    "mig_mode_needs_reset": "whose GPUs would have to be reset for it",
    "class_not_offered": "with nothing of that class",
    "larger_than_any_node": "smaller than what is asked",
    "units_booked": "booked",
    "layout_change_scheduled": "to be cut otherwise by then",
    "host_resources_short": "short of CPU or memory",
    "gpu_unbookable": "with too few GPUs that can be booked",
    "node_unhealthy": "not healthy",
    "node_stale": "not heard of",
    "search_exhausted": "too intricate to search to the end",
}


def verdict(nodes: int, counts: dict[str, int]) -> Verdict:
    """Build a verdict from counts by code, ordered by what helps most.

    A node that will have room is worth more than the way in which others never could.
    """
    if nodes == 0:
        return Verdict(0, (Reason("pool_empty", 0),))
    order = list(HELP)
    reasons = sorted(counts.items(), key=lambda item: (item[0] in LASTING, order.index(item[0])))
    return Verdict(nodes, tuple(Reason(code, count) for code, count in reasons if count))
