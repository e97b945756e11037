"""`apportion usage`: billed GPU hours, exact, and rounded for reading."""

import argparse
import sys
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from apportion.cli.connection import PoolNames, add_server_arguments, connect, naming
from apportion.cli.listing import data_of
from apportion.cli.output import print_data, table
from apportion.cli.times import TIME_GRAMMAR, both_zones, read_time
from apportion.cli.unheard import unheard
from apportion.cli.zones import add_zone_argument

if TYPE_CHECKING:
    from apportion.client import Client
    from apportion.metering.schemas import UsageView

_EXAMPLES = f"""\
Times are {TIME_GRAMMAR},
the last one that was.

examples:
  apportion usage                                      since this month began, in UTC
  apportion usage --since 2026-12-01T00:00Z --until 2027-01-01T00:00Z -o json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.epilog = _EXAMPLES
    parser.add_argument("--since", metavar="TIME", help="default: when this month began, in UTC")
    parser.add_argument("--until", metavar="TIME", help="default: now")
    add_zone_argument(parser)
    add_server_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the usage; 0, or the server's refusal."""
    start = _month() if args.since is None else read_time(args.since, field="--since", past=True)
    end = None if args.until is None else read_time(args.until, field="--until", past=True)
    with connect(args) as client, naming({"start": "--since", "end": "--until"}):
        usage = client.get_usage(start, end)
        if args.output != "table":
            print_data(data_of(usage), args.output)
            return 0
        sys.stdout.write("\n".join(_lines(client, usage)) + "\n")
    return 0


def _month() -> datetime:
    return datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def _lines(client: "Client", usage: "UsageView") -> list[str]:
    lines = [f"from  {both_zones(usage.start)}", f"until {both_zones(usage.end)}", ""]
    if not usage.items:
        return [*lines, "Nothing was used. Reserve something: apportion reserve --help"]
    pools = PoolNames(client)
    rows = [
        (item.meter, pools.name(item.pool_id), item.class_, item.gpu_hours_decimal, item.gpu_hours)
        for item in usage.items
    ]
    several = {meter for meter, count in Counter(row[0] for row in rows).items() if count > 1}
    rows += [
        (total.meter, "all", "", total.gpu_hours_decimal, total.gpu_hours)
        for total in usage.totals
        if total.meter in several
    ]
    lines.append(table(("meter", "pool", "class", "gpu hours", "exactly"), rows))
    for each in usage.unheard:
        who = unheard(each.nodes, each.gpus, each.since)
        lines.append(f"as booked, though not heard of in {pools.name(each.pool_id)}: {who}")
    return lines
