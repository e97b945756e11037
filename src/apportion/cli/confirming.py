"""Asking the person at the terminal before something ends; a script says ``--yes``."""

import argparse
import sys

from apportion.errors import InvalidInputError


def add_yes_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--yes``: do not ask."""
    parser.add_argument("--yes", action="store_true", help="do not ask")


def is_confirmed(args: argparse.Namespace, question: str) -> bool:
    """Tell whether to go on; say so where not.

    Raises InvalidInputError where nobody can be asked.
    """
    if args.yes:
        return True
    if not sys.stdin.isatty():
        raise InvalidInputError(
            f"nobody can be asked here: {question}", field="--yes", allowed="--yes"
        )
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() in {"y", "yes"}:
        return True
    sys.stdout.write("Nothing was changed.\n")
    return False
