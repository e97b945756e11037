"""`apportion reservation`: what is reserved, what waits and why; other ends; giving it back."""

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from apportion.cli.confirming import add_yes_argument, is_confirmed
from apportion.cli.connection import PoolNames, add_server_arguments, connect, find_pool, naming
from apportion.cli.explaining import run_explain
from apportion.cli.listing import add_list_arguments, data_of, print_list
from apportion.cli.outlook import (
    add_earliest_arguments,
    add_free_windows_arguments,
    run_earliest,
    run_free_windows,
)
from apportion.cli.output import print_data
from apportion.cli.reservation_text import device_text, reservation_lines
from apportion.cli.times import NO_END, both_zones, read_time, short_time
from apportion.cli.waiting import add_wait_arguments, run_wait
from apportion.cli.zones import add_zone_argument
from apportion.quantities.windows import format_instant, parse_duration

if TYPE_CHECKING:
    from apportion.client import Client
    from apportion.reservations.schemas import ReservationView

STATES: Final = ("pending", "placed", "active", "ending", "ended", "failed")

_EMPTY = "No such reservations. Make one: apportion reserve --pool POOL --mig 1g.10gb --for 2h"
_EXAMPLES = """\
examples:
  apportion reservation list --state pending --state active
  apportion reservation list --pool notebooks --all -o json
  apportion reservation show res_01k...
  apportion reservation explain res_01k...
  apportion reservation wait res_01k... --timeout 30m
  apportion reservation earliest --pool notebooks --gpus 2 --for 4h
  apportion reservation free-windows --pool notebooks --mig 3g.40gb --for 2h -k 10
  apportion reservation update res_01k... --for 8h
  apportion reservation update res_01k... --until 2026-12-01T18:00
  apportion reservation release res_01k... --yes"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what can be done with what is reserved, or could be."""
    parser.epilog = _EXAMPLES
    verbs = parser.add_subparsers(
        dest="verb",
        required=True,
        metavar="list|show|explain|wait|earliest|free-windows|update|release",
    )
    listing = verbs.add_parser("list", help="list reservations, newest first", epilog=_EXAMPLES)
    listing.add_argument(
        "--state", choices=STATES, action="append", help="only in this state (again for more)"
    )
    listing.add_argument("--pool", metavar="POOL", help="only those in this pool, by name or id")
    listing.add_argument("--name", help="only those of this name")
    add_list_arguments(listing)
    add_server_arguments(listing)
    show = verbs.add_parser("show", help="show one: why, when, where", epilog=_EXAMPLES)
    show.add_argument("id", metavar="ID", help="its id")
    add_server_arguments(show)
    explain = verbs.add_parser(
        "explain", help="say why one waits, and what would make it fit", epilog=_EXAMPLES
    )
    explain.add_argument("id", metavar="ID", help="its id")
    add_server_arguments(explain)
    wait = verbs.add_parser("wait", help="wait until one runs, or never will")
    add_wait_arguments(wait)
    add_server_arguments(wait)
    earliest = verbs.add_parser(
        "earliest", help="show when an ask could start; nothing is held", epilog=_EXAMPLES
    )
    add_earliest_arguments(earliest)
    windows = verbs.add_parser(
        "free-windows", help="show the next windows with room for an ask", epilog=_EXAMPLES
    )
    add_free_windows_arguments(windows)
    update = verbs.add_parser("update", help="let it end later or sooner", epilog=_EXAMPLES)
    update.add_argument("id", metavar="ID", help="its id")
    end = update.add_mutually_exclusive_group(required=True)
    end.add_argument(
        "--for", dest="duration", metavar="DURATION", help="its length, from its start: 8h, 1d12h"
    )
    end.add_argument("--until", metavar="TIME", help="its end")
    add_zone_argument(update)
    add_server_arguments(update)
    release = verbs.add_parser("release", help="end it now, or cancel it", epilog=_EXAMPLES)
    release.add_argument("id", metavar="ID", help="its id")
    add_yes_argument(release)
    add_server_arguments(release)


def run(args: argparse.Namespace) -> int:
    """Do what the verb says; 0, or the server's refusal."""
    with connect(args) as client:
        if args.verb == "list":
            return _list(args, client)
        if args.verb == "earliest":
            return run_earliest(args, client)
        if args.verb == "free-windows":
            return run_free_windows(args, client)
        act = {
            "show": _show,
            "explain": run_explain,
            "wait": run_wait,
            "update": _update,
            "release": _release,
        }[args.verb]
        with naming({"reservation_id": "ID", "duration": "--for", "end": _end_flag(args)}):
            return act(args, client)


def _list(args: argparse.Namespace, client: "Client") -> int:
    pool = None if args.pool is None else find_pool(client, args.pool, field="--pool")
    pools = PoolNames(client)
    fetch = partial(
        client.list_reservations,
        pool_id=None if pool is None else pool.id,
        states=args.state,
        name=args.name,
    )

    def row(view: "ReservationView") -> Sequence[object]:
        candidates = view.candidates if view.pool_id is None else [view.pool_id]
        where = ",".join(str(pools.name(pool_id)) for pool_id in candidates)
        return (
            view.id,
            view.name,
            view.state,
            where,
            _what(view),
            short_time(view.start),
            NO_END if view.open_ended else short_time(view.end),
            _reason(view),
        )

    headers = ("id", "name", "state", "pool", "what", "from", "until", "reason")
    with naming({"name": "--name"}):
        return print_list(args, fetch, headers, row, empty=_EMPTY)


def _reason(view: "ReservationView") -> str:
    """Give the code of the reason; of what waits also since when it does."""
    code, since = view.reason.get("code"), view.reason.get("since")
    if code == "placed" or code is None:
        return ""
    return f"{code} since {short_time(datetime.fromisoformat(since))}" if since else str(code)


def _what(view: "ReservationView") -> str:
    return "; ".join(device_text(device) for device in view.devices) or "host resources"


def _show(args: argparse.Namespace, client: "Client") -> int:
    return _tell(args, client, client.get_reservation(args.id))


def _update(args: argparse.Namespace, client: "Client") -> int:
    if args.until is None:
        parse_duration(args.duration, field="--for")
        end = {"duration": args.duration}
    else:
        end = {"end": format_instant(read_time(args.until, field="--until"))}
    return _tell(args, client, client.update_reservation(args.id, end))


def _end_flag(args: argparse.Namespace) -> str:
    """Return by which flag an end came in; a refusal speaks of the end of either."""
    return "--for" if getattr(args, "duration", None) is not None else "--until"


def _tell(args: argparse.Namespace, client: "Client", view: "ReservationView") -> int:
    if args.output != "table":
        print_data(data_of(view), args.output)
    else:
        lines = reservation_lines(client, view, datetime.now(UTC))
        sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _release(args: argparse.Namespace, client: "Client") -> int:
    if not args.yes and not is_confirmed(args, _question(client.get_reservation(args.id))):
        return 1
    view = client.release_reservation(args.id)
    if args.output != "table":
        print_data(data_of(view), args.output)
    else:
        code, message = view.reason.get("code"), view.reason.get("message")
        sys.stdout.write(f"{view.id}: {view.state}, {code}: {message}\n")
    return 0


def _question(view: "ReservationView") -> str:
    until = "" if view.end is None else f", until {both_zones(view.end)}"
    until = f", {NO_END}" if view.open_ended else until
    return f"End {view.id} {view.name or ''} ({view.state}{until}) now?"
