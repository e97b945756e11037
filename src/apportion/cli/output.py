"""What a command prints: a plain table for people, JSON or YAML for programs. No heavy import.

In JSON and YAML shares are strings such as ``"3/7"`` and times RFC 3339 in UTC; keys keep the order
in which the command built them.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Final, TextIO, cast

from apportion.cli.columns import columns, left, right

FORMATS: Final = ("table", "json", "yaml")


def add_output_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``-o/--output table|json|yaml`` as ``args.output``."""
    parser.add_argument(
        "-o", "--output", choices=FORMATS, default="table", help="how to print (default: table)"
    )


def print_data(data: object, output: str) -> None:
    """Print one document as JSON, or as YAML where ``output`` says so."""
    document = plain(data)
    if output == "yaml":
        import yaml

        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    else:
        import json

        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    sys.stdout.write(text)


def plain(value: object) -> object:
    """Turn values of ours into what JSON and YAML hold: exact numbers and times become strings."""
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return {str(key): plain(item) for key, item in items}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in cast("Sequence[object]", value)]
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str | Fraction | Decimal):
        return str(value)  # an enum member too: YAML would write its Python type
    return _moment(value)


def _moment(value: object) -> str:
    """Write an instant or a duration; the module that can is loaded only here."""
    from apportion.quantities.windows import format_duration, format_instant

    if isinstance(value, datetime):
        return format_instant(value)
    if isinstance(value, timedelta):
        return format_duration(value)
    raise TypeError(f"a command must not print a {type(value).__name__}")


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    widths: Sequence[int] | None = None,
    header: bool = True,
) -> str:
    """Lay rows out under upper-case headers; a column of numbers stands to the right.

    A list that comes in pages keeps its columns in line by ``widths``, and has one ``header``.
    """
    widths = column_widths(headers, rows) if widths is None else widths
    numbers = [
        bool(rows) and all(isinstance(row[i], int | Fraction) for row in rows)
        for i in range(len(headers))
    ]
    cells = [[_cell(value) for value in row] for row in rows]
    if header:
        cells.insert(0, [text.upper() for text in headers])
    return "\n".join(
        "  ".join(
            (right if to_right else left)(text, width)
            for text, width, to_right in zip(line, widths, numbers, strict=True)
        ).rstrip()
        for line in cells
    )


def column_widths(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> list[int]:
    """Give how wide each column has to be."""
    cells = [[_cell(value) for value in row] for row in rows]
    return [max(map(columns, column)) for column in zip(headers, *cells, strict=True)]


def amount_text(value: int | str) -> str:
    """Write an exact amount as the API gives it."""
    return str(value)


def wants_colour(stream: TextIO | None = None) -> bool:
    """Tell whether to colour: only on a terminal, and never when NO_COLOR is set to anything."""
    target = sys.stdout if stream is None else stream
    return not os.environ.get("NO_COLOR") and target.isatty()


def _cell(value: object) -> str:
    return "-" if value is None else str(plain(value))
