"""One answer of the server: its fields for programs, a few plain lines for people."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from apportion.cli.listing import data_of
from apportion.cli.output import plain, print_data

if TYPE_CHECKING:
    from pydantic import BaseModel


def print_view(args: argparse.Namespace, view: "BaseModel", lines: Sequence[str]) -> int:
    """Print an answer as the flags ask; 0."""
    if args.output == "table":
        sys.stdout.write("\n".join(lines) + "\n")
    else:
        print_data(data_of(view), args.output)
    return 0


def fact_lines(title: str, facts: Mapping[str, object]) -> list[str]:
    """Write a title and below it a line for each fact that there is."""
    told = {name: value for name, value in facts.items() if value is not None}
    width = max(map(len, told), default=0)
    return [title, *(f"  {name:<{width}}  {plain(value)}" for name, value in told.items())]


def next_lines(*commands: str) -> list[str]:
    """Suggest what to type next."""
    return ["", "Next:", *(f"  {command}" for command in commands)]
