"""Secrets that are shown once: on the screen, or in a file for its owner alone and nowhere else."""

import argparse
import contextlib
import os
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from apportion.cli.listing import data_of
from apportion.cli.output import print_data
from apportion.errors import InvalidInputError, UnavailableError

if TYPE_CHECKING:
    from pydantic import BaseModel


class Keep(Protocol):
    """Writes the secret."""

    def __call__(self, secret: str, /) -> None: ...


@contextlib.contextmanager
def secret_file(path: Path, *, replace: bool) -> Generator[Keep]:
    """Open the place for a secret before it is asked for: one that cannot be kept is lost.

    The file appears whole and with mode 0600, or not at all. Without ``replace`` one that exists is
    refused, so that no other token is lost by a slip.
    """
    if not replace and path.exists():
        raise InvalidInputError(
            "is there already", field="--out", given=str(path), allowed="a new file"
        )
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    with _reporting(path):
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def keep(secret: str, /) -> None:
        with _reporting(path):
            os.write(handle, f"{secret}\n".encode())
            os.fsync(handle)
            fresh.replace(path)

    try:
        yield keep
    finally:
        os.close(handle)
        fresh.unlink(missing_ok=True)


def print_issued(
    args: argparse.Namespace,
    issued: "BaseModel",
    secret: str,
    facts: Sequence[str],
    following: Sequence[str],
) -> int:
    """Print what was issued; its secret only where no file holds it."""
    if args.output != "table":
        document = {
            name: value
            for name, value in data_of(issued).items()
            if args.out is None or value != secret
        }
        print_data(document, args.output)
        return 0
    shown = (
        [secret, "", "It is shown this once."]
        if args.out is None
        else [f"The secret is in {args.out} (mode 0600)."]
    )
    sys.stdout.write("\n".join([*facts, "", *shown, *following]) + "\n")
    return 0


@contextlib.contextmanager
def _reporting(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise UnavailableError(
            f"cannot be written: {error.strerror}", field="--out", given=str(path)
        ) from error
