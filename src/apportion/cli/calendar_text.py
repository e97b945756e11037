"""Calendars of GPUs: windows and the gaps behind them, drawn on lines of time."""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from apportion.cli.arguments import whole_number
from apportion.cli.connection import add_server_arguments, connect, find_pool, naming
from apportion.cli.holding import first_gpus
from apportion.cli.listing import LIMIT_MAX, data_of
from apportion.cli.output import print_data, table
from apportion.cli.times import TIME_GRAMMAR, both_zones, can_draw_windows, read_time, short_time
from apportion.cli.zones import add_zone_argument
from apportion.errors import InvalidInputError

if TYPE_CHECKING:
    from apportion.client import Client
    from apportion.reservations.window_schemas import CalendarWindow, GpuCalendar

_WIDTH = 60
_DAY = timedelta(hours=24)
_GPUS = 8
_BOXES = "■─·"
_ASCII = "#-."


def add_calendar_arguments(parser: argparse.ArgumentParser) -> None:
    """Add which stretch of time is shown."""
    parser.add_argument("--from", dest="start", metavar="TIME", help="default: now")
    parser.add_argument("--until", metavar="TIME", help="default: 24 hours later; 31 days at most")
    add_zone_argument(parser)
    add_server_arguments(parser)


def add_gpu_calendar_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the GPU, and when."""
    parser.add_argument("gpu", metavar="GPU", help="its UUID, as `apportion node show` tells it")
    add_calendar_arguments(parser)


def add_pool_calendar_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the pool, which of its GPUs, and when."""
    parser.add_argument("pool", metavar="POOL", help="its name or id")
    parser.add_argument("--node", metavar="NAME", help="only the GPUs of this node")
    parser.add_argument(
        "--limit", type=whole_number, metavar="N", help=f"at most so many GPUs (default: {_GPUS})"
    )
    add_calendar_arguments(parser)


def run_gpu_calendar(args: argparse.Namespace) -> int:
    """Draw one GPU's calendar, and list its windows; 0, or the server's refusal."""
    span = _span(args)
    with connect(args) as client, naming({"gpu_id": "GPU", "start": "--from", "end": "--until"}):
        calendar = _whole(client, args.gpu, span)
    if args.output != "table":
        print_data(data_of(calendar), args.output)
        return 0
    lines = [*_head(span), *_stale(calendar), *_lanes(calendar.windows, span)]
    if calendar.windows:
        headers = ("units", "held by", "from", "until", "kept free until")
        lines += ["", table(headers, [_row(each) for each in calendar.windows])]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def run_pool_calendar(args: argparse.Namespace, client: "Client") -> int:
    """Draw the calendars of a pool's GPUs; 0, or the server's refusal."""
    span = _span(args)
    most = _GPUS if args.limit is None else args.limit
    if not 1 <= most <= LIMIT_MAX:
        raise InvalidInputError(
            "is out of range", field="--limit", given=most, allowed=f"1 to {LIMIT_MAX}"
        )
    pool = find_pool(client, args.pool, field="POOL")
    with naming({"node": "--node", "start": "--from", "end": "--until"}):
        gpus = first_gpus(client, pool, node=args.node, limit=most)
        calendars = {gpu.id: _whole(client, gpu.id, span) for gpu in gpus}
    if args.output != "table":
        print_data({"calendars": [data_of(each) for each in calendars.values()]}, args.output)
        return 0
    lines = _head(span)
    for gpu in gpus:
        lines += ["", f"{gpu.node} GPU {gpu.index} ({gpu.id})", *_stale(calendars[gpu.id])]
        lines += _lanes(calendars[gpu.id].windows, span)
    if not gpus:
        lines += ["", "No GPUs."]
    sys.stdout.write("\n".join(lines) + "\n")
    if len(gpus) == most:
        sys.stderr.write(f"({most} GPUs drawn; more with --limit, or a node's with --node)\n")
    return 0


def _span(args: argparse.Namespace) -> tuple[datetime, datetime]:
    now = datetime.now(UTC).replace(microsecond=0)
    start = now if args.start is None else read_time(args.start, field="--from")
    try:
        usual = start + _DAY
    except OverflowError:
        raise InvalidInputError(
            "reaches beyond the calendar", field="--from", given=args.start, allowed=TIME_GRAMMAR
        ) from None
    end = usual if args.until is None else read_time(args.until, field="--until", after=start)
    return start, end


def _whole(client: "Client", gpu_id: str, span: tuple[datetime, datetime]) -> "GpuCalendar":
    """Read a calendar to its end, in as many answers as that takes."""
    start, end = span
    calendar = client.get_gpu_calendar(gpu_id, start=start, end=end)
    windows = list(calendar.windows)
    last = calendar
    while last.end < end:
        last = client.get_gpu_calendar(gpu_id, start=last.end, end=end)
        windows += [each for each in last.windows if each.start >= last.start]
    return calendar.model_copy(update={"end": end, "windows": windows})


def _head(span: tuple[datetime, datetime]) -> list[str]:
    held, gap, free = _marks()
    start, end = span
    return [
        f"from  {both_zones(start)}",
        f"until {both_zones(end)}",
        f"{held} held  {gap} kept free behind it  {free} free",
    ]


def _stale(calendar: "GpuCalendar") -> Iterator[str]:
    if calendar.stale_since is not None:
        since = both_zones(calendar.stale_since)
        yield f"nobody hears of its node since {since}: what is free is not booked"


def _marks() -> str:
    return _BOXES if can_draw_windows() else _ASCII


def _lanes(windows: "Sequence[CalendarWindow]", span: tuple[datetime, datetime]) -> Iterator[str]:
    """Draw a line for all windows of the same units."""
    by_units: dict[str, list[CalendarWindow]] = {}
    for each in windows:
        by_units.setdefault(each.units, []).append(each)
    lanes: Mapping[str, Sequence[CalendarWindow]] = by_units or {"": []}
    for units in sorted(lanes, key=_first_unit):
        yield f"{_lane(lanes[units], span)}  {_said(units)}".rstrip()


def _first_unit(units: str) -> tuple[int, str]:
    """Order as units lie on the ruler: ``{[3,7)}`` after ``{[0,)}``."""
    return int(units[2:].partition(",")[0] or 0), units


def _said(units: str) -> str:
    return "whole GPU" if units == "{[0,)}" else units


def _lane(windows: "Sequence[CalendarWindow]", span: tuple[datetime, datetime]) -> str:
    held, gap, free = _marks()
    start, end = span
    cells: list[str] = []
    for at in range(_WIDTH):
        low, high = start + (end - start) * at / _WIDTH, start + (end - start) * (at + 1) / _WIDTH
        near = [each for each in windows if each.start < high and _after(each.held_until, low)]
        cells.append(held if any(_after(each.end, low) for each in near) else gap if near else free)
    return "".join(cells)


def _after(instant: datetime | None, low: datetime) -> bool:
    return instant is None or instant > low


def _row(window: "CalendarWindow") -> Sequence[object]:
    by = {
        "reservation": window.name or window.reservation_id,
        "reserved": "reserved",
        "partition": "a change of its cut",
    }
    until = "not known" if window.end is None else short_time(window.end)
    kept = short_time(window.held_until) if window.held_until != window.end else None
    return _said(window.units), by[window.what], short_time(window.start), until, kept
