"""`apportion event`: what happened, in order, and what happens."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

from apportion.cli.connection import add_server_arguments, connect, naming
from apportion.cli.listing import Columns, Fetch, add_list_arguments, data_of, print_list
from apportion.cli.times import short_time
from apportion.errors import InvalidInputError, UnavailableError

if TYPE_CHECKING:
    from apportion.client import Client, Page
    from apportion.events.schemas import EventView

HEADERS: Final = ("time", "type", "subject", "facts")

_PAUSE_SECONDS = 1.0
_PAGE = 1000
_FACTS_WIDTH = 80
_EMPTY = "No such events yet."
_FLAGS: Final = {
    "type": "--type",
    "subject": "--subject",
    "Last-Event-ID": "--after",
    "last_event_id": "--after",
}
_EXAMPLES = """\
examples:
  apportion event list --type reservation.
  apportion event list --subject res_01k...
  apportion event list --follow                  until Ctrl-C
  apportion event watch                          what happens from now on, until Ctrl-C
  apportion event watch --after ID -o json       after an event that was seen, one JSON a line"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `list` and `watch`."""
    parser.epilog = _EXAMPLES
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="list|watch")
    listing = verbs.add_parser("list", help="list events, oldest first", epilog=_EXAMPLES)
    _add_filters(listing)
    listing.add_argument("--follow", action="store_true", help="go on with what happens")
    add_list_arguments(listing)
    add_server_arguments(listing)
    watch = verbs.add_parser("watch", help="show events as they happen", epilog=_EXAMPLES)
    _add_filters(watch)
    begin = watch.add_mutually_exclusive_group()
    begin.add_argument("--after", metavar="ID", help="begin after this event (default: now)")
    begin.add_argument("--from-start", action="store_true", help="begin with the first event")
    add_server_arguments(watch)


def _add_filters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--subject", metavar="ID", help="only of this object")
    parser.add_argument("--type", metavar="START", help="only types that begin so: reservation.")


def run(args: argparse.Namespace) -> int:
    """List, follow or watch; 0, or the server's refusal."""
    with connect(args) as client, naming(_FLAGS):
        if args.verb == "watch":
            return _watch(args, client)
        fetch = partial(client.list_events, subject=args.subject, type_prefix=args.type)
        if args.follow:
            _follow(args, fetch)
        return print_list(args, fetch, HEADERS, _row, empty=_EMPTY)


def _follow(args: argparse.Namespace, fetch: "Fetch[EventView]") -> NoReturn:
    """Print what there is and what comes, until somebody stops it; a server's restart does not."""
    if args.limit is not None:
        raise InvalidInputError("has no meaning together with --follow", field="--limit")
    _refuse_yaml(args)
    columns = Columns(HEADERS)
    with naming({"cursor": "--cursor"}):
        page = fetch(limit=_PAGE, cursor=args.cursor)
    while True:
        if page.items:
            _print(page.items, columns, args.output)
        else:
            time.sleep(_PAUSE_SECONDS)
        page = _next(page)


def _watch(args: argparse.Namespace, client: "Client") -> int:
    """Print each event as the server tells of it, until somebody stops it."""
    _refuse_yaml(args)
    columns = Columns(HEADERS)
    told = client.stream_events(
        subject=args.subject,
        type_prefix=args.type,
        from_="start" if args.from_start else None,
        last_event_id=args.after,
    )
    for event in told:
        _print([event], columns, args.output)
    return 0


def _refuse_yaml(args: argparse.Namespace) -> None:
    """Refuse what has no way to write one document after another as they come."""
    if args.output == "yaml":
        raise InvalidInputError(
            "cannot be followed", field="--output", given="yaml", allowed="table, json"
        )


def _next(page: "Page[EventView]") -> "Page[EventView]":
    told = False
    while True:
        try:
            return page.after(page.next_cursor or "")
        except UnavailableError as error:
            if not told:
                sys.stderr.write(f"({error.message}; trying on)\n")
            told = True
            time.sleep(_PAUSE_SECONDS)


def _print(events: "Sequence[EventView]", columns: Columns, output: str) -> None:
    if output == "table":
        text = columns.text([_row(event) for event in events])
    else:
        text = "\n".join(json.dumps(data_of(each), ensure_ascii=False) for each in events)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _row(event: "EventView") -> Sequence[object]:
    facts = json.dumps(event.data, ensure_ascii=False, separators=(", ", ": "))
    if len(facts) > _FACTS_WIDTH:
        facts = facts[: _FACTS_WIDTH - 1] + "…"
    return short_time(event.time), event.type, event.subject, facts
