"""When an ask could start, pool by pool, and the next windows with room for it, on a line."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from apportion.cli.arguments import whole_number
from apportion.cli.connection import PoolNames, naming
from apportion.cli.listing import data_of
from apportion.cli.output import print_data
from apportion.cli.reserve import add_request_arguments, asked, request_flags
from apportion.cli.times import both_zones, can_draw_windows, lane

if TYPE_CHECKING:
    from apportion.client import Client
    from apportion.reservations.window_schemas import FreeWindow, PoolOutlook

_WINDOWS: Final = 5


def add_earliest_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what an ask is made of."""
    # Written out, it has a line that no terminal holds: argparse does not break up alternatives.
    parser.usage = "%(prog)s --pool POOL [ASK] (--for D|--until T|--open-ended) ..."
    parser.set_defaults(name=None, key=None)
    add_request_arguments(parser, recurring=False)


def add_free_windows_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what an ask is made of, and how many windows to show."""
    parser.add_argument(
        "-k", type=whole_number, default=_WINDOWS, metavar="N", help="so many (default: 5, to 50)"
    )
    add_earliest_arguments(parser)


def run_earliest(args: argparse.Namespace, client: "Client") -> int:
    """Print when the ask could start in each pool; 0 where it ever could, else 1."""
    body, _ = asked(args, client)
    with naming(request_flags(args)):
        outlook = client.find_earliest(body)
    if args.output != "table":
        print_data(data_of(outlook), args.output)
    else:
        now = datetime.now(UTC)
        names = PoolNames(client)
        lines = [line for each in outlook.pools for line in _pool_lines(each, names, now)]
        sys.stdout.write("\n".join(lines) + "\n")
    return 0 if any(each.window is not None for each in outlook.pools) else 1


def run_free_windows(args: argparse.Namespace, client: "Client") -> int:
    """Print the next windows with room, each on one line of time; 0 where there is any, else 1."""
    body, _ = asked(args, client)
    with naming({**request_flags(args), "k": "-k"}):
        found = client.find_free_windows({**body, "k": args.k})
    if args.output != "table":
        print_data(data_of(found), args.output)
    else:
        names = PoolNames(client)
        lines = list(_drawn(found.windows, names, datetime.now(UTC)))
        for each in found.pools:
            if each.window is None or each.quota is not None:
                lines += [_head(each, names), *_against(each)]
        sys.stdout.write("\n".join(lines) + "\n")
    return 0 if found.windows else 1


def _pool_lines(outlook: "PoolOutlook", names: PoolNames, now: datetime) -> Iterator[str]:
    yield _head(outlook, names)
    window = outlook.window
    if window is not None:
        begins = "now" if window.start <= now else both_zones(window.start)
        yield f"  could start {begins} on {_where(window)}"
        yield f"  could last until {_until(window)}"
        yield from (f"  {line}" for line in _free_from(window))
    yield from _against(outlook)


def _head(outlook: "PoolOutlook", names: PoolNames) -> str:
    return f"{names.name(outlook.pool_id)}:" + (
        "" if outlook.window is not None else " no start is in sight"
    )


def _against(outlook: "PoolOutlook") -> Iterator[str]:
    if outlook.reason is not None:
        yield f"  {outlook.reason['code']}: {outlook.reason['message']}"
        yield f"  what would help: {outlook.reason['hint']}"
    if (short := outlook.quota) is not None:
        yield (
            f"  quota: it takes {short.asked} {short.resource} or more,"
            f" and {short.left} are left of {short.tenant_id}'s"
        )


def _where(window: "FreeWindow") -> str:
    gpus = list(dict.fromkeys(each.gpu_id for each in window.gpus))
    nodes = ", ".join(window.nodes)
    return f"{nodes} ({', '.join(gpus)})" if gpus else nodes


def _until(window: "FreeWindow") -> str:
    return (
        "any end: nothing is booked behind it" if window.until is None else both_zones(window.until)
    )


def _free_from(window: "FreeWindow") -> Iterator[str]:
    """Say from when on each GPU is nobody else's; not where that is so at the start."""
    told: set[str] = set()
    for each in window.gpus:
        if each.gpu_id in told or (each.free_from is not None and each.free_from <= window.start):
            continue
        told.add(each.gpu_id)
        when = (
            "nobody knows when: one has a part of it without an end"
            if each.free_from is None
            else both_zones(each.free_from)
        )
        yield f"{each.gpu_id} is free of all others from: {when}"


def _drawn(windows: "Sequence[FreeWindow]", names: PoolNames, now: datetime) -> Iterator[str]:
    if not windows:
        return
    low = min(now, windows[0].start)
    high = max(each.until or each.end or each.start for each in windows)
    for each in windows:
        if each.end is not None:
            boxes = can_draw_windows()
            yield lane(each.start, each.end, (low, high), until=each.until, boxes=boxes)
        yield f"  {both_zones(each.start)} in {names.name(each.pool_id)} on {_where(each)}"
