"""The window that a command asks for: its flags, read in the user's zone."""

import argparse
from collections.abc import Mapping

from apportion.cli.times import TIME_GRAMMAR, read_time
from apportion.errors import InvalidInputError
from apportion.quantities.windows import format_instant, parse_duration


def add_window_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--for`` or ``--until``, ``--from``, and ``--before`` with ``--after``."""
    group = parser.add_argument_group("the window")
    length = group.add_mutually_exclusive_group(required=True)
    length.add_argument("--for", dest="duration", metavar="DURATION", help="4h, 90m, 1d12h, PT4H")
    length.add_argument("--until", metavar="TIME", help="its end; needs --from")
    group.add_argument("--from", dest="start", metavar="TIME", help="its start (default: now)")
    group.add_argument(
        "--before", metavar="TIME", help="with --for: over by then, at the earliest start with room"
    )
    group.add_argument("--after", metavar="TIME", help="with --before: begun no sooner than then")


def asked_window(args: argparse.Namespace) -> Mapping[str, str]:
    """Return the fields of a reservation that say when."""
    _check_together(args)
    window: dict[str, str] = {}
    start, flag = (args.start, "--from") if args.after is None else (args.after, "--after")
    if start is not None:
        window["start"] = format_instant(read_time(start, field=flag))
    if args.until is not None:
        window["end"] = format_instant(read_time(args.until, field="--until"))
    if args.duration is not None:
        parse_duration(args.duration, field="--for")
        window["duration"] = args.duration
    if args.before is not None:
        window["end_before"] = format_instant(read_time(args.before, field="--before"))
    return window


def start_flag(args: argparse.Namespace) -> str:
    """Return by which flag a start came in."""
    return "--from" if args.after is None else "--after"


def _check_together(args: argparse.Namespace) -> None:
    if args.until is not None and args.start is None:
        raise InvalidInputError("needed beside an end", field="--from", allowed=TIME_GRAMMAR)
    if args.before is not None and args.duration is None:
        raise InvalidInputError(
            "bounds a length", field="--before", given=args.before, allowed="--for with it"
        )
    if args.before is not None and args.start is not None:
        raise InvalidInputError(
            "is one start, and any before the end was asked for",
            field="--from",
            given=args.start,
            allowed="--after with --before, or --from alone",
        )
    if args.after is not None and args.before is None:
        raise InvalidInputError(
            "means something only with --before",
            field="--after",
            given=args.after,
            allowed="--from for the start itself",
        )
