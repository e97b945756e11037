"""``apportion accounting``: the recorded GPU hours, exact, with the waste beside them."""

import argparse
import sys
from collections.abc import Mapping

from apportion.cli import records
from apportion.cli.output import add_output_argument, print_data, table
from apportion.errors import InvalidInputError
from apportion.planning.accounting import Ledger, UsageRecord
from apportion.quantities.shares import decimal_text, exact_text

_EXAMPLES = """examples:
  apportion plan JPCP --fraction 0.25 --timeslice --record --seconds 7200
  apportion accounting                                 1/4 of a GPU for 2 hours: 0.5 GPU hours
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "--records", metavar="FILE", help="the records (default: those of the state directory)"
    )
    add_output_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Read the records and print them with their sums."""
    path = records.path_of(args.records)
    if args.records is not None and not path.exists():
        raise InvalidInputError("there is no such file", field="--records", given=args.records)
    ledger = records.read(path)
    if args.output == "table":
        sys.stdout.write(_report(ledger))
    else:
        print_data(_document(ledger), args.output)
    return 0


def _report(ledger: Ledger) -> str:
    if not ledger.records:
        return "nothing is recorded yet (apportion plan … --record)\n"
    headers = ("job", "attempt", "label", "mechanism", "isolation", "requested", "allocated")
    rows = [_cells(record) for record in ledger.records.values()]
    total = ledger.gpu_hours
    return (
        f"{table((*headers, 'seconds', 'gpu hours', 'wasted'), rows)}\n\n"
        f"total: {exact_text(total)} GPU hours (about {decimal_text(total)}), "
        f"of them {exact_text(ledger.wasted_hours)} wasted by rounding up\n"
    )


def _cells(record: UsageRecord) -> tuple[object, ...]:
    known = record.seconds is not None
    return (
        record.job_id,
        record.attempt,
        record.label,
        record.mechanism,
        record.isolation,
        exact_text(record.requested),
        exact_text(record.allocated),
        exact_text(record.seconds) if record.seconds is not None else None,
        exact_text(record.gpu_hours) if known else None,
        exact_text(record.wasted_hours) if known else None,
    )


def _document(ledger: Ledger) -> Mapping[str, object]:
    return {
        "records": [
            {
                "job_id": record.job_id,
                "attempt": record.attempt,
                "label": record.label,
                "mechanism": record.mechanism,
                "isolation": record.isolation,
                "requested": record.requested,
                "allocated": record.allocated,
                "seconds": record.seconds,
                "gpu_hours": record.gpu_hours,
                "wasted_hours": record.wasted_hours,
            }
            for record in ledger.records.values()
        ],
        "gpu_hours": ledger.gpu_hours,
        "wasted_hours": ledger.wasted_hours,
    }
