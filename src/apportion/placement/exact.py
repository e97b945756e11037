"""The policy ``exact``, for batches: the most requests placed, then the fewest GPUs touched.

The batch is first placed request by request by the default policy. That is where the search starts,
and what is given where it finds nothing better. Needs the extra ``exact``.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from apportion.placement.asks import Ask
from apportion.placement.by_state import is_single, pack_by_state
from apportion.placement.offers import Offer
from apportion.placement.packing import Chosen, Packed, kinds_of, pack
from apportion.placement.search import Bin, offer_in, open_bins
from apportion.placement.state import NodeState
from apportion.placement.verdicts import Verdict
from apportion.solving import TIME_LIMIT, check_installed
from apportion.solving.patterns import TooManyPatternsError

if TYPE_CHECKING:
    from apportion.placement.index import PoolIndex

ASKS_MAX: Final = 256
"""How many requests of a batch are searched for; those after them are placed one by one."""
PAIRS_MAX: Final = 2048
"""The most pairs of a kind of request and a node that are weighed."""

Answers = tuple[Offer | Verdict, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """An answer to each request, in their order, and how sure it is that none is better.

    The offers are to be taken all together, and ``gpus`` is how many GPUs they touch. Nothing that
    places as many requests touches fewer than ``bound``; ``optimal`` says that this is no more, and
    that nothing places more requests. ``searched`` is for how many requests, the first of them,
    that was looked for: where it is not for all, ``optimal`` is false.
    """

    answers: Answers
    gpus: int
    optimal: bool
    bound: int
    searched: int


def place_batch_exact(
    index: "PoolIndex",
    asks: Sequence[Ask],
    window: tuple[int, int, int],
    time_limit: timedelta = TIME_LIMIT,
) -> Batch:
    """Choose room for each of several asks in ``window``: (start, end, now), as `PoolIndex.place`.

    Nothing is held when this returns. InvalidInputError that names ``policy`` where the extra is
    not installed.
    """
    check_installed(field="policy")
    index.advance(window[2])
    known = _answers(index, asks, {}, window)
    searched = min(len(asks), ASKS_MAX)
    batch = Batch(
        known, _touched(known), optimal=False, bound=_least(asks, known), searched=searched
    )
    for search in _searches(asks[:searched]):
        packed = search(index, asks[:searched], window, batch.answers[:searched], time_limit)
        if packed is not None:
            found = _answers(index, asks, packed.chosen, window)
            batch = _better(batch, found, packed)
        if batch.optimal:
            break
    return batch


Search = Callable[
    ["PoolIndex", Sequence[Ask], tuple[int, int, int], Answers, timedelta], Packed | None
]


def _searches(asks: Sequence[Ask]) -> Iterator[Search]:
    """Yield how to search: among states of GPUs where these decide alone, else on nodes.

    Where hosts decide too, states tell what is best if hosts had enough, which they often have.
    """
    by_state = all(is_single(ask) for ask in asks)
    if by_state:
        yield _by_state
    if not by_state or any(ask.vcpu_milli or ask.memory_mib for ask in asks):
        yield _on_nodes


def _by_state(
    index: "PoolIndex",
    asks: Sequence[Ask],
    window: tuple[int, int, int],
    known: Answers,
    time_limit: timedelta,
) -> Packed | None:
    with suppress(TooManyPatternsError):
        return pack_by_state(index.nodes.values(), kinds_of(asks), window, known, time_limit)
    return None


def _on_nodes(
    index: "PoolIndex",
    asks: Sequence[Ask],
    window: tuple[int, int, int],
    known: Answers,
    time_limit: timedelta,
) -> Packed | None:
    kinds = kinds_of(asks)
    nodes = _nodes(index, asks, window, known)
    most = PAIRS_MAX // max(1, len(kinds))
    packed = pack(nodes[:most], kinds, window, known, time_limit)
    if packed is None or len(nodes) <= most:
        return packed
    # What was not looked at may be better.
    return Packed(packed.chosen, optimal=False, bound=0)


def _better(batch: Batch, found: Answers, packed: Packed) -> Batch:
    """Return the better of two answers, with what is proven of it.

    A proof for so many requests holds for an answer that places as many.
    """
    best = min(batch.answers, found, key=_rank)
    touched = _touched(best)
    placed = sum(isinstance(answer, Offer) for answer in best[: batch.searched])
    holds = batch.searched == len(best) and placed >= len(packed.chosen)
    bound = max(batch.bound, packed.bound if holds else 0)
    optimal = holds and packed.optimal and touched == bound
    return Batch(best, touched, optimal=optimal, bound=bound, searched=batch.searched)


def _nodes(
    index: "PoolIndex", asks: Sequence[Ask], window: tuple[int, int, int], known: Answers
) -> list[NodeState]:
    """Return the nodes that could be of use: those of the known answer, then those most idle.

    Of nodes that are alike no more are needed than there are requests; nor more than the GPUs that
    the known answer touches, where it places all and all have pieces.
    """
    used = {offer.node for offer in known if isinstance(offer, Offer)}
    most = len(asks)
    if all(isinstance(answer, Offer) and answer.pieces for answer in known):
        most = min(most, _touched(known))
    nodes = [node for node in index.nodes.values() if node.healthy]
    nodes.sort(key=lambda node: (node.id not in used, -sum(g.idle for g in node.gpus), node.id))
    by_name = any(not _is_blind(ask) for ask in asks)
    alike: Counter[Hashable] = Counter()
    kept: list[NodeState] = []
    for node in nodes:
        likeness = node.id if by_name else _likeness(node, window)
        alike[likeness] += 1
        if node.id in used or alike[likeness] <= most:
            kept.append(node)
    return kept


def _is_blind(ask: Ask) -> bool:
    """Tell whether an ask cannot tell nodes apart that are built alike."""
    return ask.together in {"node", "gpu"} and not any(d.selector.on_atom for d in ask.devices)


def _likeness(node: NodeState, window: tuple[int, int, int]) -> Hashable:
    """Return what a node is and has left in a window."""
    start, end, _ = window
    gpus = Counter(
        (gpu.state.model, gpu.busy(start, end) if gpu.split == "mig" else gpu.room(start, end))
        for gpu in node.gpus
        if gpu.state is not None
    )
    return frozenset(gpus.items()), node.room(start, end)


def _answers(
    index: "PoolIndex",
    asks: Sequence[Ask],
    chosen: Mapping[int, Chosen],
    window: tuple[int, int, int],
) -> Answers:
    """Place the chosen ones where they were chosen to be, then the others by the default policy."""
    start, end, now = window
    members: dict[int, int] = {}
    refused: dict[int, Verdict] = {}
    with index.for_a_moment() as gang:
        for number in sorted(range(len(asks)), key=lambda each: each not in chosen):
            answer = None
            if number in chosen:
                answer = _taken(index, asks[number], chosen[number], window)
            if answer is None:
                answer = index.place(asks[number], start, end, now)
            if isinstance(answer, Verdict):
                refused[number] = answer
                continue
            members[number] = len(gang.offers)
            gang.hold(answer, asks[number], start, end)
        return tuple(
            gang.offers[members[number]] if number in members else refused[number]
            for number in range(len(asks))
        )


def _taken(
    index: "PoolIndex", ask: Ask, chosen: Chosen, window: tuple[int, int, int]
) -> Offer | None:
    """Take what was chosen from what the GPUs have left now; None where that is no longer there."""
    bins: dict[tuple[int, int | None], Bin] = {}
    for gpu_id in {gpu for _, gpu, _ in chosen.places}:
        for each in open_bins(index.gpu(gpu_id), window[0], window[1]):
            bins[gpu_id, None if each.atom is None else each.atom.id] = each
    node = index.nodes[chosen.node]
    if any((gpu, atom) not in bins for _, gpu, atom in chosen.places):
        return None
    if not node.hosts(ask.vcpu_milli, ask.memory_mib, window[0], window[1]):
        return None
    places = [(device, bins[gpu, atom]) for device, gpu, atom in chosen.places]
    return offer_in(node, ask, places, window)


def _rank(answers: Answers) -> tuple[int, int]:
    return sum(isinstance(answer, Verdict) for answer in answers), _touched(answers)


def _touched(answers: Answers) -> int:
    offers = (answer for answer in answers if isinstance(answer, Offer))
    return len({piece.gpu for offer in offers for piece in offer.pieces})


def _least(asks: Sequence[Ask], answers: Answers) -> int:
    """Return what any answer touches that places as many: one GPU, unless hosts are enough."""
    placed = sum(isinstance(answer, Offer) for answer in answers)
    return int(placed > sum(not ask.devices for ask in asks))
