"""`apportion reservation explain`: why it waits, what would make it fit, what it waited for."""

import argparse
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from apportion.cli.connection import PoolNames
from apportion.cli.listing import data_of
from apportion.cli.output import print_data
from apportion.cli.reservation_text import head, missing, why
from apportion.cli.times import both_zones
from apportion.cli.zones import local
from apportion.placement.wording import sentence

if TYPE_CHECKING:
    from apportion.client import Client
    from apportion.reservations.schemas import ReservationExplained
    from apportion.reservations.told import PoolExplained, ReasonThen, Suggestion


def run_explain(args: argparse.Namespace, client: "Client") -> int:
    """Print the explanation of one reservation; 0."""
    told = client.explain_reservation(args.id)
    if args.output != "table":
        print_data(data_of(told), args.output)
    else:
        sys.stdout.write("\n".join(_lines(told, PoolNames(client))) + "\n")
    return 0


def _lines(told: "ReservationExplained", pools: PoolNames) -> Iterator[str]:
    view = told.reservation
    yield head(view, pools)
    if not told.pools:
        yield from (f"  {line}" for line in why(view))
        yield from (f"  {line}" for line in missing(view))
    for pool in told.pools:
        yield from _pool_lines(pool)
    if view.state == "pending":
        until = both_zones(view.pending_until)
        yield f"  it is tried when something that could help changes, until {until}"
    if told.suggestions:
        yield "what would make it fit:"
        yield from (line for each in told.suggestions for line in _suggested(each))
    elif view.state == "pending":
        yield "nothing near to it would fit now"
    if told.history:
        yield "what it waited for:"
        yield from (f"  {_then(each)}" for each in told.history)
        left_out = told.changes + 1 - len(told.history)
        if left_out > 0:
            yield f"  ({left_out} more between the first and the next)"


def _pool_lines(pool: "PoolExplained") -> Iterator[str]:
    yield f"  {pool.name}: {_message(pool)}"
    for reason in pool.reasons:
        if reason.since is not None:
            yield f"    not heard of since {both_zones(reason.since)}, the first of these nodes"
    if pool.reasons:
        yield f"    {pool.reasons[0].hint}"


def _message(pool: "PoolExplained") -> str:
    if pool.quota is not None or not pool.reasons:
        return pool.message
    return sentence(pool.nodes, pool.reasons, pool.what, _local)


def _local(instant: datetime) -> str:
    """Write an instant in the user's zone, the day only where it is another one."""
    shown = local(instant)
    return (
        f"{shown:%H:%M}"
        if shown.date() == local(datetime.now(UTC)).date()
        else f"{shown:%Y-%m-%d %H:%M}"
    )


def _suggested(each: "Suggestion") -> Iterator[str]:
    message = each.message if each.start is None else f"begin at {both_zones(each.start)}"
    yield f"  {message}"
    if each.command is not None:
        yield f"    {each.command}"


def _then(each: "ReasonThen") -> str:
    return f"{both_zones(each.since)}  {each.reason.get('code')}: {each.reason.get('message')}"
