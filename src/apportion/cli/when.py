"""The window that a command asks for: its flags, read in the user's zone."""

import argparse
import re
from collections.abc import Mapping
from typing import Final

from apportion.cli.times import TIME_GRAMMAR, read_time
from apportion.cli.zones import add_zone_argument, chosen_zone
from apportion.errors import InvalidInputError
from apportion.quantities.windows import format_instant, parse_duration

_WORKING: Final = ["mon", "tue", "wed", "thu", "fri"]
_DAYS: Final = {"weekday": _WORKING, "day": [*_WORKING, "sat", "sun"]}
_EVERY: Final = "--every weekday --from 09:00 --to 17:00 --zone Europe/Berlin --until 2026-12-31"
SERIES_FLAGS: Final = {
    "recurrence.days": "--every",
    "recurrence.start": "--from",
    "recurrence.end": "--to",
    "recurrence.zone": "--zone",
    "recurrence.from": "--starting",
    "recurrence.until": "--until",
    "recurrence": "--every",
}


def add_window_arguments(parser: argparse.ArgumentParser, *, recurring: bool) -> None:
    """Add what says when: once, any time before an end, or again and again."""
    group = parser.add_argument_group("the window")
    length = group.add_mutually_exclusive_group(required=True)
    length.add_argument("--for", dest="duration", metavar="DURATION", help="4h, 90m, 1d12h, PT4H")
    length.add_argument("--until", metavar="TIME", help="its end; needs --from")
    length.add_argument(
        "--open-ended", action="store_true", help="without an end, where the pool permits that"
    )
    group.add_argument("--from", dest="start", metavar="TIME", help="its start (default: now)")
    group.add_argument(
        "--before", metavar="TIME", help="with --for: over by then, at the earliest start with room"
    )
    group.add_argument("--after", metavar="TIME", help="with --before: begun no sooner than then")
    add_zone_argument(parser)
    if recurring:
        _add_recurrence(parser)
    else:
        parser.set_defaults(every=None, to=None, starting=None)


def _add_recurrence(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the same again and again, all of it or nothing")
    group.add_argument(
        "--every",
        metavar="DAYS",
        help="again on weekday, day, or mon,wed: --from 09:00 --to 17:00 --until 2026-12-31",
    )
    group.add_argument(
        "--to", metavar="HH:MM", help="with --every: its end on each day, or the next"
    )
    group.add_argument(
        "--starting", metavar="DATE", help="with --every: from when on (default: today)"
    )


def asked_window(args: argparse.Namespace) -> Mapping[str, object]:
    """Return the fields of a reservation that say when."""
    _check_together(args)
    window: dict[str, object] = {"open_ended": True} if args.open_ended else {}
    start, flag = (args.start, "--from") if args.after is None else (args.after, "--after")
    begins = None if start is None else read_time(start, field=flag)
    if begins is not None:
        window["start"] = format_instant(begins)
    if args.until is not None:
        window["end"] = format_instant(read_time(args.until, field="--until", after=begins))
    if args.duration is not None:
        parse_duration(args.duration, field="--for")
        window["duration"] = args.duration
    if args.before is not None:
        window["end_before"] = format_instant(
            read_time(args.before, field="--before", after=begins)
        )
    return window


def asked_recurrence(args: argparse.Namespace) -> Mapping[str, object]:
    """Return the recurrence that ``--every`` begins."""
    zone = chosen_zone()
    needed = {"--from": args.start, "--to": args.to, "--zone": zone, "--until": args.until}
    for flag, value in needed.items():
        if value is None:
            raise InvalidInputError("needed beside --every", field=flag, allowed=_EVERY)
    for flag, value in (("--before", args.before), ("--after", args.after)):
        if value is not None:
            raise InvalidInputError("is no part of --every", field=flag, allowed=_EVERY)
    starting = {} if args.starting is None else {"from": _date(args.starting, "--starting")}
    return {
        "days": _DAYS.get(args.every) or args.every.split(","),
        "start": _clock(args.start, "--from"),
        "end": _clock(args.to, "--to"),
        "zone": None if zone is None else zone.key,
        "until": _date(args.until, "--until"),
        **starting,
    }


def _clock(text: str, flag: str) -> str:
    """Read a time of day as people write it: 9:00 is 09:00."""
    if re.fullmatch("([0-9]|[01][0-9]|2[0-3]):[0-5][0-9]", text) is None:
        raise InvalidInputError(
            "is no time of day", field=flag, given=text, allowed="HH:MM such as 09:00"
        )
    return text.zfill(len("09:00"))


def _date(text: str, flag: str) -> str:
    if re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", text) is None:
        raise InvalidInputError(
            "is no date", field=flag, given=text, allowed="YYYY-MM-DD such as 2026-12-31"
        )
    return text


def start_flag(args: argparse.Namespace) -> str:
    """Return by which flag a start came in."""
    return "--from" if args.after is None else "--after"


def _check_together(args: argparse.Namespace) -> None:
    for flag in ("--to", "--starting"):
        if getattr(args, flag[2:]) is not None:
            raise InvalidInputError("means something only with --every", field=flag, allowed=_EVERY)
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
