"""Lists from the server: in pages, one after another, so that a long one needs no more memory."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from apportion.cli.arguments import whole_number
from apportion.cli.connection import naming
from apportion.cli.output import column_widths, print_data, table

if TYPE_CHECKING:
    from pydantic import BaseModel

    from apportion.client import Page

LIMIT_DEFAULT: Final = 100
LIMIT_MAX: Final = 1000

T = TypeVar("T", bound="BaseModel")


class Fetch(Protocol[T]):
    """A method of the client that lists, with its filters already given."""

    def __call__(self, *, limit: int, cursor: str | None) -> "Page[T]": ...


def add_list_arguments(parser: argparse.ArgumentParser) -> None:
    """Add how much of a list is wanted."""
    group = parser.add_argument_group("how much")
    size = group.add_mutually_exclusive_group()
    size.add_argument(
        "--limit",
        type=whole_number,
        metavar="N",
        help=f"the most rows, 1 to {LIMIT_MAX} (default: {LIMIT_DEFAULT})",
    )
    size.add_argument("--all", action="store_true", help="every row, page after page")
    group.add_argument("--cursor", metavar="C", help="go on where an earlier list ended")


def print_list(
    args: argparse.Namespace,
    fetch: Fetch[T],
    headers: Sequence[str],
    row: Callable[[T], Sequence[object]],
    *,
    empty: str,
) -> int:
    """Print a list as the flags ask; ``empty`` says what to do where there is nothing."""
    with naming({"limit": "--limit", "cursor": "--cursor"}):
        limit = LIMIT_MAX if args.all else LIMIT_DEFAULT if args.limit is None else args.limit
        page = fetch(limit=limit, cursor=args.cursor)
        if args.output != "table":
            items = page.all() if args.all else page.items
            document = {
                "items": [data_of(item) for item in items],
                "next_cursor": None if args.all else page.next_cursor,
            }
            print_data(document, args.output)
            return 0
        if not page.items:
            sys.stdout.write(f"{empty}\n")
            return 0
        rest = _print_pages(page, headers, row, every=args.all)
    if rest is not None and len(page.items) == limit:
        sys.stderr.write(f"(more: --all, or --cursor {rest})\n")
    return 0


class Columns:
    """Rows that come bit by bit, in columns that stay in line, under one header."""

    def __init__(self, headers: Sequence[str]) -> None:
        self._headers = headers
        self._widths = [0] * len(headers)
        self._begun = False

    def text(self, rows: Sequence[Sequence[object]]) -> str:
        """Lay out what has come; a column may grow wider, never narrower."""
        fresh = column_widths(self._headers, rows)
        self._widths = [max(pair) for pair in zip(self._widths, fresh, strict=True)]
        text = table(self._headers, rows, widths=self._widths, header=not self._begun)
        self._begun = True
        return text


def data_of(view: "BaseModel") -> Mapping[str, Any]:
    """Give an answer's fields as the API has them."""
    return view.model_dump(mode="json", by_alias=True)


def _print_pages(
    page: "Page[T]",
    headers: Sequence[str],
    row: Callable[[T], Sequence[object]],
    *,
    every: bool,
) -> str | None:
    """Print one page or all from it on; return where to go on."""
    columns = Columns(headers)
    while page.items:
        sys.stdout.write(columns.text([row(item) for item in page.items]) + "\n")
        if not every or page.next_cursor is None:
            return page.next_cursor if not every else None
        page = page.after(page.next_cursor)
    return None
