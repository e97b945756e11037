"""`apportion audit`: who did what to which object, with the object before and after."""

import argparse
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from apportion.cli.connection import add_server_arguments, connect, naming
from apportion.cli.listing import add_list_arguments, print_list
from apportion.cli.times import read_time, short_time
from apportion.cli.zones import add_zone_argument

if TYPE_CHECKING:
    from apportion.events.schemas import AuditView

_EMPTY = "No such records."
_WIDTH: Final = 80
_FLAGS: Final = {
    "subject": "--subject",
    "actor": "--actor",
    "action": "--action",
    "request_id": "--request",
}
_EXAMPLES: Final = """\
The table shows what differs; -o json shows each object before and after whole.

examples:
  apportion audit list --subject pool_01k...
  apportion audit list --actor tok_01k... --action quota.
  apportion audit list --all -o json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `list`."""
    parser.epilog = _EXAMPLES
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="list")
    listing = verbs.add_parser("list", help="list what was done, newest first", epilog=_EXAMPLES)
    listing.add_argument("--subject", metavar="ID", help="only to this object")
    listing.add_argument("--actor", metavar="ID", help="only by this token or tenant")
    listing.add_argument("--action", metavar="START", help="only what begins so: pool.")
    listing.add_argument("--request", metavar="ID", help="only by this request")
    listing.add_argument("--since", metavar="TIME", help="only from then on")
    listing.add_argument("--until", metavar="TIME", help="only before then")
    add_zone_argument(listing)
    add_list_arguments(listing)
    add_server_arguments(listing)


def run(args: argparse.Namespace) -> int:
    """List; 0, or the server's refusal."""
    with connect(args) as client, naming(_FLAGS):
        fetch = partial(
            client.list_audit,
            subject=args.subject,
            actor=args.actor,
            action=args.action,
            request_id=args.request,
            since=None if args.since is None else read_time(args.since, field="--since", past=True),
            until=None if args.until is None else read_time(args.until, field="--until", past=True),
        )
        headers = ("time", "actor", "action", "subject", "what changed")
        return print_list(args, fetch, headers, _row, empty=_EMPTY)


def _row(record: "AuditView") -> Sequence[object]:
    what = difference(record.before, record.after)
    if len(what) > _WIDTH:
        what = what[: _WIDTH - 1] + "…"
    return short_time(record.time), record.actor, record.action, record.subject, what


def difference(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> str:
    """Say in one line what became of an object: its changed fields, or all where it is new."""
    if after is None:
        return "gone"
    if before is None:
        return ", ".join(f"{name} {_text(value)}" for name, value in after.items())
    return ", ".join(
        f"{name} {_text(before.get(name))} → {_text(after.get(name))}"
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
