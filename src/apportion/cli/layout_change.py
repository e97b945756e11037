"""`apportion layout set`, `plan`, `status` and `cancel`: what a pool's GPUs are cut into."""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from apportion.cli.arguments import whole_number
from apportion.cli.connection import add_server_arguments, connect, find_own_pool, naming
from apportion.cli.draw import Cell, can_draw_boxes, draw_gpu
from apportion.cli.listing import data_of
from apportion.cli.output import print_data, table, wants_colour
from apportion.cli.showing import fact_lines, next_lines, print_view
from apportion.cli.times import short_time
from apportion.cli.unheard import unheard
from apportion.errors import InvalidInputError
from apportion.quantities.shares import decimal_text

if TYPE_CHECKING:
    from apportion.client import Client
    from apportion.partitions.schemas import GpuLayoutView, LayoutPlan, NodeLayoutView
    from apportion.pools.schemas import PoolView

VERBS: Final = ("set", "plan", "status", "cancel")

_DRAWN_MAX: Final = 16
_SHOWN_MAX: Final = 20
_FLAGS: Final = {
    "layout": "LAYOUT",
    "policy.migLayout": "LAYOUT",
    "replicas": "--replicas",
    "policy.replicas": "--replicas",
    "policy.shares": "--shares",
}


def add_verbs(add: Callable[..., argparse.ArgumentParser], epilog: str) -> None:
    """Add the verbs that a server answers, by ``add_parser``."""
    for verb, words in (
        ("set", "ask for another cut; each node changes in its turn"),
        ("plan", "show what another cut would mean; nothing happens"),
    ):
        parser = add(verb, help=words, epilog=epilog)
        parser.add_argument("pool", metavar="POOL", help="the pool's name or id")
        parser.add_argument("layout", metavar="LAYOUT", nargs="?", help="such as all-1g.10gb")
        parser.add_argument("--replicas", type=whole_number, metavar="N", help="slots a GPU")
        parser.add_argument("--shares", action="store_true", help="free shares instead of slots")
        add_server_arguments(parser)
    status = add("status", help="show where each node stands, and why", epilog=epilog)
    status.add_argument("pool", metavar="POOL", help="the pool's name or id")
    add_server_arguments(status)
    cancel = add("cancel", help="drop what was not granted yet", epilog=epilog)
    cancel.add_argument("pool", metavar="POOL", help="the pool's name or id")
    add_server_arguments(cancel)


def run_verb(args: argparse.Namespace) -> int:
    """Do what the verb says; 0, or the server's refusal."""
    with connect(args) as client, naming(_FLAGS):
        pool = find_own_pool(client, args.pool, field="POOL")
        match args.verb:
            case "set":
                return _set(args, client, pool)
            case "plan":
                return _plan(args, client, pool)
            case "cancel":
                return _cancel(args, client, pool)
            case _:
                return _status(args, client, pool)


def _asked(args: argparse.Namespace) -> dict[str, Any]:
    asked = {
        "layout": args.layout,
        "replicas": args.replicas,
        "shares": 100 if args.shares else None,
    }
    given = {name: value for name, value in asked.items() if value is not None}
    if len(given) != 1:
        raise InvalidInputError(
            "say what to cut into, in one way",
            field="LAYOUT",
            given=args.layout,
            allowed="LAYOUT, --replicas N or --shares",
        )
    return given


def cut_words(cut: Mapping[str, Any] | None) -> str | None:
    """Name a cut for people."""
    if cut is None:
        return None
    if "replicas" in cut:
        return f"{cut['replicas']} slots"
    return "free shares" if "shares" in cut else str(cut.get("migLayout", "as found"))


def _set(args: argparse.Namespace, client: "Client", pool: "PoolView") -> int:
    change = client.set_layout(pool.id, _asked(args))
    words = f"{pool.name} is to be cut into {cut_words(change.desired)}"
    rest = f"{change.changing:,} nodes have yet to be" if change.changing else "all its nodes are"
    following = next_lines(f"apportion layout status {pool.name}") if change.changing else []
    return print_view(args, change, [f"{words}: {rest}", *following])


def _cancel(args: argparse.Namespace, client: "Client", pool: "PoolView") -> int:
    change = client.cancel_layout(pool.id)
    lines = [f"{change.cancelled:,} nodes of {pool.name} stay as they are cut"]
    if change.changing:
        lines.append(f"{change.changing:,} were granted the change already, and complete it")
    lines.append(f"the pool asks for {cut_words(change.desired)}")
    return print_view(args, change, lines)


# -- plan ------------------------------------------------------------------------------------------


def _plan(args: argparse.Namespace, client: "Client", pool: "PoolView") -> int:
    plan = client.plan_layout(pool.id, _asked(args))
    return print_view(args, plan, [*_plan_facts(plan, pool), *_plan_rows(plan)])


def _plan_facts(plan: "LayoutPlan", pool: "PoolView") -> list[str]:
    demand = plan.demand
    fit = f"{demand.fit_then:,} of {demand.weighed:,} that wait would fit empty GPUs cut so"
    facts = {
        "now": cut_words(plan.current),
        "then": cut_words(plan.wanted),
        "nodes": f"{plan.changing:,} change, at most {plan.at_once:,} at once",
        "cut so already": plan.unchanged or None,
        "free now": plan.ready or None,
        "no end known": plan.open_ended or None,
        "last free": short_time(plan.last_from),
        "not heard of": _unheard(plan),
        "idle while held": f"{decimal_text(plan.idle_gpu_hours, 2)} GPU hours at most",
        "demand": f"{fit}, {demand.fit_now:,} as it is" if demand.waiting else "nothing waits",
    }
    return fact_lines(pool.name, facts)


def _unheard(plan: "LayoutPlan") -> str | None:
    if plan.stale is None:
        return None
    return unheard(plan.stale.nodes, plan.stale.gpus, plan.stale.since)


def _plan_rows(plan: "LayoutPlan") -> Iterator[str]:
    rows = [
        (
            node.name,
            short_time(node.free_from) or "unknown",
            ", ".join(node.open_ended or node.held_by) or "nobody",
            None if node.idle_hours is None else decimal_text(node.idle_hours, 2),
        )
        for node in plan.nodes[:_SHOWN_MAX]
    ]
    if rows:
        yield from ("", table(("node", "could change", "held back by", "idle GPU hours"), rows))
    if len(plan.nodes) > _SHOWN_MAX:
        yield f"and {len(plan.nodes) - _SHOWN_MAX:,} more: -o json has them all"


# -- status ----------------------------------------------------------------------------------------


def _status(args: argparse.Namespace, client: "Client", pool: "PoolView") -> int:
    nodes = list(client.list_layouts(pool.id, limit=1000).all())
    if args.output != "table":
        print_data({"items": [data_of(node) for node in nodes]}, args.output)
        return 0
    sys.stdout.write("\n".join(_status_lines(pool, nodes)) + "\n")
    return 0


def _status_lines(pool: "PoolView", nodes: "list[NodeLayoutView]") -> Iterator[str]:
    states = Counter(node.state for node in nodes)
    counted = ", ".join(f"{count:,} {state}" for state, count in states.items())
    yield f"{pool.name}: {counted or 'no nodes'}"
    if not nodes:
        return
    stale = [(each.stale_since, each) for each in nodes if each.stale_since is not None]
    if stale:
        gpus = sum(len(each.gpus) for _, each in stale)
        who = unheard(len(stale), gpus, min(since for since, _ in stale))
        yield f"as they said last, and not heard of: {who}"
    # What changes is what people look for.
    nodes = sorted(nodes, key=lambda node: (node.state == "settled", node.name))
    headers = ("node", "state", "cut", "next", "held from", "spec", "seen", "why")
    yield from ("", table(headers, [_status_row(node) for node in nodes[:_SHOWN_MAX]]))
    if len(nodes) > _SHOWN_MAX:
        yield f"and {len(nodes) - _SHOWN_MAX:,} more: -o json has them all"
    drawn = [(node, gpu) for node in nodes for gpu in node.gpus]
    for node, gpu in drawn[:_DRAWN_MAX]:
        yield from _picture(node, gpu)


def _status_row(node: "NodeLayoutView") -> tuple[object, ...]:
    return (
        f"{node.name}{_apart(node)}",
        node.state,
        cut_words(node.granted),
        cut_words(node.pending),
        short_time(node.hold_from),
        node.generation,
        node.observed_generation,
        _why(node),
    )


def _apart(node: "NodeLayoutView") -> str:
    """Say of a node that it does not follow its pool."""
    if node.own_layout is not None:
        return " (its own)"
    return "" if node.pinned_layout is None else " (pinned)"


def _why(node: "NodeLayoutView") -> str:
    message = str(node.reason.get("message", ""))
    if node.stale_since is None:
        return message
    return f"not heard of since {short_time(node.stale_since)}: {message}"


def _picture(node: "NodeLayoutView", gpu: "GpuLayoutView") -> Iterator[str]:
    held = "" if gpu.held_from is None else f", kept from {short_time(gpu.held_from)} on"
    yield ""
    yield f"{node.name} GPU {gpu.index}: {gpu.split}{held}"
    units, cells = _cells(gpu)
    if cells:
        yield from draw_gpu(units, cells, colour=wants_colour(), boxes=can_draw_boxes())


def _cells(gpu: "GpuLayoutView") -> tuple[int, list[Cell]]:
    """Return how many units a GPU is drawn with, and what sits where on it."""
    if gpu.split == "slots":
        return gpu.ruler, [Cell(label=f"slot {at}", mask=1 << at) for at in range(gpu.ruler)]
    if gpu.board is None or gpu.split != "mig":
        return 0, []
    from apportion.geometry import board_by_key

    board = board_by_key(gpu.board)
    if board.ruler is None:
        return 0, []
    masks = {
        f"{profile.name}@{place.start}": place.mask
        for profile in board.profiles
        for place in profile.placements
    }
    cells = [
        Cell(label=each.partition("@")[0], mask=masks[each])
        for each in gpu.observed
        if each in masks
    ]
    return board.ruler.memory_units, cells
