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
    from apportion.client import Page
    from apportion.events.schemas import EventView

HEADERS: Final = ("time (UTC)", "type", "subject", "facts")

_PAUSE_SECONDS = 1.0
_PAGE = 1000
_FACTS_WIDTH = 80
_EMPTY = "No such events yet."
_EXAMPLES = """\
examples:
  apportion event list --type reservation.
  apportion event list --subject res_01k...
  apportion event list --follow                  until Ctrl-C
  apportion event list --follow -o json          one JSON document a line"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `list`."""
    parser.epilog = _EXAMPLES
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="list")
    listing = verbs.add_parser("list", help="list events, oldest first", epilog=_EXAMPLES)
    listing.add_argument("--subject", metavar="ID", help="only of this object")
    listing.add_argument("--type", metavar="START", help="only types that begin so: reservation.")
    listing.add_argument("--follow", action="store_true", help="go on with what happens")
    add_list_arguments(listing)
    add_server_arguments(listing)


def run(args: argparse.Namespace) -> int:
    """List, and follow if asked; 0, or the server's refusal."""
    with connect(args) as client, naming({"type": "--type", "subject": "--subject"}):
        fetch = partial(client.list_events, subject=args.subject, type_prefix=args.type)
        if args.follow:
            _follow(args, fetch)
        return print_list(args, fetch, HEADERS, _row, empty=_EMPTY)


def _follow(args: argparse.Namespace, fetch: "Fetch[EventView]") -> NoReturn:
    """Print what there is and what comes, until somebody stops it; a server's restart does not."""
    if args.limit is not None:
        raise InvalidInputError("has no meaning together with --follow", field="--limit")
    if args.output == "yaml":
        raise InvalidInputError(
            "cannot be followed", field="--output", given="yaml", allowed="table, json"
        )
    columns = Columns(HEADERS)
    with naming({"cursor": "--cursor"}):
        page = fetch(limit=_PAGE, cursor=args.cursor)
    while True:
        if page.items:
            _print(page, columns, args.output)
        else:
            time.sleep(_PAUSE_SECONDS)
        page = _next(page)


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


def _print(page: "Page[EventView]", columns: Columns, output: str) -> None:
    if output == "table":
        text = columns.text([_row(event) for event in page.items])
    else:
        text = "\n".join(json.dumps(data_of(each), ensure_ascii=False) for each in page.items)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _row(event: "EventView") -> Sequence[object]:
    facts = json.dumps(event.data, ensure_ascii=False, separators=(", ", ": "))
    if len(facts) > _FACTS_WIDTH:
        facts = facts[: _FACTS_WIDTH - 1] + "…"
    return short_time(event.time), event.type, event.subject, facts
