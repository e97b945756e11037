"""Answers a shell that completes a line: nouns, or the verbs, flags and choices of one noun."""

import argparse
import importlib
import os
from collections.abc import Iterator
from typing import Final, cast

import argcomplete
from argcomplete.completers import FilesCompleter, SuppressCompleter

from apportion.cli import NOUNS, Noun, Parser

_FILE: Final = "FILE"


def complete() -> None:
    """Write the completions where argcomplete's script reads them, and end the process."""
    parser = Parser(prog="apportion")
    nouns = parser.add_subparsers(dest="noun")
    begun = _noun_of(os.environ.get("COMP_LINE", ""), os.environ.get("COMP_POINT", ""))
    for name in NOUNS if begun is None else NOUNS.keys() & {begun}:
        noun = nouns.add_parser(name)
        if name == begun:
            _fill(noun, name)
    # Flags are offered once a hyphen is typed, files for FILE only: not wherever a name is asked.
    argcomplete.autocomplete(
        parser, always_complete_options=False, default_completer=SuppressCompleter()
    )


def _noun_of(line: str, point: str) -> str | None:
    """Return the noun that stands in the line before the cursor; None where it is being typed."""
    before = line[: int(point)] if point.isdigit() else line
    words = before.split()
    whole = words[:-1] if before and not before[-1].isspace() else words
    skipped = os.environ["_ARGCOMPLETE"]  # 1, and more behind `python -m`
    return next(iter(whole[int(skipped) if skipped.isdigit() else 1 :]), None)


def _fill(parser: argparse.ArgumentParser, name: str) -> None:
    cast("Noun", importlib.import_module(f"apportion.cli.{name}")).add_arguments(parser)
    for action in _actions(parser):
        if _FILE in str(action.metavar):
            action.completer = FilesCompleter()  # pyright: ignore[reportAttributeAccessIssue] - argcomplete's way


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way to list them
        yield action
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - the same
            for inner in cast("dict[str, argparse.ArgumentParser]", action.choices).values():
                yield from _actions(inner)
