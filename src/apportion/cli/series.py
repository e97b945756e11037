"""`apportion series`: reservations that come again; `reserve --every` makes them."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from apportion.cli.confirming import add_yes_argument, is_confirmed
from apportion.cli.connection import PoolNames, add_server_arguments, connect, naming
from apportion.cli.listing import LIMIT_MAX, add_list_arguments, data_of, print_list
from apportion.cli.output import print_data, table
from apportion.cli.reservation_text import LIVE
from apportion.cli.showing import next_lines
from apportion.cli.times import local_time, short_time

if TYPE_CHECKING:
    from apportion.client import Client
    from apportion.reservations.schemas import ReservationView, State
    from apportion.reservations.window_schemas import RecurrenceSpec, SeriesSummary, SeriesView

_EMPTY: Final = (
    "No such series. Make one: apportion reserve --pool POOL --gpus 1 --every weekday"
    " --from 09:00 --to 17:00 --zone ZONE --until DATE"
)
_EXAMPLES: Final = """\
examples:
  apportion series list --live
  apportion series show ser_01k...
  apportion series release ser_01k... --yes"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `list`, `show` and `release`."""
    parser.epilog = _EXAMPLES
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="list|show|release")
    listing = verbs.add_parser("list", help="list series, newest first", epilog=_EXAMPLES)
    listing.add_argument("--name", help="only those of this name")
    listing.add_argument(
        "--live",
        action=argparse.BooleanOptionalAction,
        help="only those of which something is to come or runs, or only the others",
    )
    add_list_arguments(listing)
    add_server_arguments(listing)
    show = verbs.add_parser("show", help="show its windows, and where each is", epilog=_EXAMPLES)
    release = verbs.add_parser(
        "release", help="end what lives of it, and cancel what is to come", epilog=_EXAMPLES
    )
    add_yes_argument(release)
    for verb in (show, release):
        verb.add_argument("id", metavar="ID", help="its id")
        add_server_arguments(verb)


def run(args: argparse.Namespace) -> int:
    """Do what the verb says; 0, or the server's refusal."""
    with connect(args) as client, naming({"series_id": "ID", "name": "--name"}):
        if args.verb == "list":
            return _list(args, client)
        if args.verb == "release":
            if not args.yes and not is_confirmed(args, f"End all of series {args.id} now?"):
                return 1
            client.release_series(args.id)
        print_series(args, client, client.get_series(args.id, limit=LIMIT_MAX))
    return 0


def _list(args: argparse.Namespace, client: "Client") -> int:
    fetch = partial(client.list_series, name=args.name, live=args.live)
    headers = ("id", "name", "when", "reservations", "made")
    return print_list(args, fetch, headers, _row, empty=_EMPTY)


def _row(series: "SeriesSummary") -> Sequence[object]:
    return (
        series.id,
        series.name,
        _when(series.recurrence),
        _counts(series.states),
        short_time(series.created_at),
    )


def _when(spec: "RecurrenceSpec") -> str:
    return f"{', '.join(spec.days)} from {spec.start} to {spec.end} in {spec.zone}"


def _counts(states: "Mapping[State, int]") -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(states.items()))


def print_series(args: argparse.Namespace, client: "Client", view: "SeriesView") -> None:
    """Print a series with all of its reservations."""
    if args.output != "table":
        print_data(data_of(view), args.output)
        return
    lines = [
        f"{view.id} {view.name or ''}".rstrip() + f": {_counts(view.states)}",
        f"  {_when(view.recurrence)}",
        "",
        _table(view.reservations, PoolNames(client)),
    ]
    if any(state in view.states for state in ("pending", *LIVE)):
        lines += next_lines(
            f"apportion series show {view.id}", f"apportion series release {view.id}"
        )
    sys.stdout.write("\n".join(lines) + "\n")


def _table(reservations: "list[ReservationView]", names: PoolNames) -> str:
    rows = [
        (
            each.id,
            each.state,
            names.name(each.pool_id),
            local_time(each.start),
            local_time(each.end),
        )
        for each in reservations
    ]
    return table(("id", "state", "pool", "from", "until"), rows)
