"""The command line: one table of nouns, one module a noun, and only the chosen one is loaded.

A noun's module has ``add_arguments(parser)`` and ``run(args) -> int``; it sets ``parser.epilog`` to
an example. Exit codes: 0 done, 1 not possible as asked or refused by the server, 2 bad input, 130
interrupted.
"""
# PYTHON_ARGCOMPLETE_OK

import argparse
import codecs
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn, Protocol, cast

from apportion.errors import ApportionError, InvalidInputError, NotFoundError

NOUNS: Final[Mapping[str, str]] = {
    "up": "start the server, with its own database and a real fleet in it",
    "plan": "choose how one ask for a part of a GPU is met, and say what it wastes",
    "pack": "pack asks onto whole GPUs and show what sits where",
    "accounting": "sum the recorded fractional GPU hours",
    "gpu": "list GPU models, their MIG profiles and placements",
    "layout": "check MIG layouts, and change what a pool's GPUs are cut into",
    "caller": "show who the token stands for and what it may do",
    "tenant": "create, show and delete tenants",
    "token": "create, rotate and revoke tokens",
    "role": "list the built-in roles and what each may do",
    "policy": "permit and forbid, and explain a decision",
    "site": "create and show sites",
    "pool": "create, change, offer and retire pools of GPUs",
    "node": "import and show nodes, and let machines join",
    "agent": "on a GPU node: join a pool, run its daemon, show and check what there is",
    "atom": "list what can be booked",
    "reserve": "reserve GPUs or parts of them for a window of time",
    "reservation": "show and release reservations",
    "run": "reserve, wait, run a command on what was reserved, and give it back",
    "env": "print what a shell needs to use what a reservation has",
    "defrag": "make room in a pool by moving the fewest reservations",
    "series": "list, show and release reservations that come again",
    "quota": "show, set and explain quotas",
    "usage": "show billed GPU hours",
    "event": "list and watch what happens",
    "audit": "list who did what to which object",
    "webhook": "send events to other systems",
    "fleet": "keep tenants, pools, offers, quotas and policies in one file",
    "api": "call any operation of the API by its id",
    "doctor": "check the rules on live data",
    "completion": "print what a shell needs to complete commands",
}

_BROKEN_PIPE = 141
_INTERRUPTED = 130
_ASCII = {"—": "-", "–": "-", "⚠": "!", "…": "...", "×": "x", "→": "->", "≥": ">="}  # noqa: RUF001 - these are the characters to replace


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help as written, 80 columns wide everywhere.

    Asking for the terminal's width costs the import of shutil, on every start: argparse makes a
    formatter for each flag that it is told of.
    """

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=80)


class Parser(argparse.ArgumentParser):
    """argparse with whole flag names only, examples kept as written, and errors as ours read."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        kwargs.setdefault("allow_abbrev", False)  # a script's --gpu must not become --gpu-model
        kwargs.setdefault("formatter_class", _Help)
        super().__init__(*args, **kwargs)  # pyright: ignore[reportArgumentType] - passed through

    def error(self, message: str) -> NoReturn:
        """Print one line that names the flag, and where help is; exit 2."""
        self.exit(2, f"error: {message}\n(see {self.prog} --help)\n")


class Noun(Protocol):
    """What each noun's module has."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the noun's verbs and flags."""
        ...

    def run(self, args: argparse.Namespace) -> int:
        """Do what was asked and return the exit code."""
        ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. A user's mistake never shows a traceback.

    ``APPORTION_DEBUG=1`` lets every error through as it is raised.
    """
    if "_ARGCOMPLETE" in os.environ:  # a shell completes a line
        return _complete()
    _print_what_the_terminal_can()
    try:
        code = _dispatch(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except SystemExit as stop:  # argparse: --help and bad flags
        return stop.code if isinstance(stop.code, int) else 0
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader left (`| head`). Without this the interpreter's own flush at exit complains.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return _BROKEN_PIPE
    except Exception as error:
        if os.environ.get("APPORTION_DEBUG") == "1":
            raise
        return _report(error)
    return code


def _complete() -> int:
    """Answer the shell; a fault must show nothing in the middle of what a person types."""
    try:
        from apportion.cli.completing import complete

        complete()
    except Exception:
        if os.environ.get("APPORTION_DEBUG") == "1":
            raise
    return 1


def _dispatch(argv: list[str]) -> int:
    """Find the noun, build its parser alone, run it."""
    if not argv or argv[0] in {"-h", "--help", "help"}:
        sys.stdout.write(f"{_overview()}\n")
        return 0 if argv else 2
    if argv[0] == "--version":
        from importlib.metadata import version

        sys.stdout.write(f"apportion {version('apportion')}\n")
        return 0
    name, rest = argv[0], argv[1:]
    if name not in NOUNS:
        raise _unknown(name)
    noun = cast("Noun", importlib.import_module(f"apportion.cli.{name}"))
    parser = Parser(prog=f"apportion {name}", description=NOUNS[name])
    noun.add_arguments(parser)
    return _run_in_zone(noun, parser.parse_args(rest))


def _run_in_zone(noun: Noun, args: argparse.Namespace) -> int:
    """Run a noun by the clocks of --zone or APPORTION_ZONE; a wrong name fails before it acts."""
    flag: str | None = getattr(args, "zone", None)
    name = os.environ.get("APPORTION_ZONE") or None if flag is None else flag
    if name is None:
        return _run(noun, args)
    from apportion.cli.zones import in_zone

    with in_zone(name, field="APPORTION_ZONE" if flag is None else "--zone"):
        return _run(noun, args)


def _run(noun: Noun, args: argparse.Namespace) -> int:
    """Run a noun; what is not found is refused with the flag, or the list, that has it."""
    try:
        return noun.run(args)
    except NotFoundError as error:
        flag: str | None = getattr(args, "tenant", None)
        acting = os.environ.get("APPORTION_TENANT") if flag is None else flag
        what = error.message.removeprefix("no such ")
        if error.field == "tenant_id" and error.given == acting:
            error.field = "APPORTION_TENANT" if flag is None else "--tenant"
        elif error.hint is None and what in NOUNS:
            error.hint = f"`apportion {what} list` shows them"
        raise


def _overview() -> str:
    rows = "\n".join(f"  {name:<12} {line}" for name, line in NOUNS.items())
    return (
        "usage: apportion COMMAND …\n\n"
        "Shares GPUs by the slice and accounts for every one.\n\n"
        f"commands:\n{rows}\n\n"
        "examples:\n"
        "  apportion plan JPCP --fraction 0.25 --mig-capable\n"
        "  apportion up\n\n"
        "`apportion COMMAND --help` shows a command's flags; `apportion --version` the version."
    )


def _unknown(name: str) -> InvalidInputError:
    from difflib import get_close_matches

    near = get_close_matches(name, NOUNS, n=1)
    return InvalidInputError(
        "there is no such command",
        field="COMMAND",
        given=name,
        allowed=", ".join(NOUNS),
        hint=f"Did you mean {near[0]}?" if near else None,
    )


def _report(error: Exception) -> int:
    """Say on stderr what went wrong; return the exit code."""
    if isinstance(error, ApportionError):
        sys.stderr.write(f"error: {error}\n")
        return 2 if isinstance(error, InvalidInputError) else 1
    if isinstance(error, OSError) and error.strerror:  # a full disk, say: not ours to mend
        file = "" if error.filename is None else f": {error.filename}"
        sys.stderr.write(f"error: {error.strerror}{file}\n(APPORTION_DEBUG=1 shows where)\n")
        return 1
    sys.stderr.write(
        f"error: this is a fault of apportion itself: {type(error).__name__}: {error}\n"
        "(APPORTION_DEBUG=1 shows where)\n"
    )
    return 1


def _print_what_the_terminal_can() -> None:
    """Let a stdout that is not UTF-8 show `-` for a dash, `?` for the rest, and not fail midway."""
    codecs.register_error("apportion", _as_ascii)
    reconfigure = getattr(sys.stdout, "reconfigure", None)  # a test's capture has none
    if reconfigure is not None:
        reconfigure(errors="apportion")


def _as_ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(_ASCII.get(char, "?") for char in text), error.end
