"""`apportion agent foreign`: MIG instances on this machine that its agent did not make."""

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from apportion.cli.agent_daemon import add_state_argument
from apportion.cli.confirming import add_yes_argument, is_confirmed
from apportion.cli.connection import naming
from apportion.cli.output import add_output_argument, print_data, table
from apportion.errors import UnavailableError

if TYPE_CHECKING:
    from apportion.agent.mig.foreign import Foreign

VERB: Final = "foreign"


def add_verbs(add: Callable[..., argparse.ArgumentParser], epilog: str) -> None:
    """Add `foreign list` and `foreign destroy`, by ``add_parser``."""
    parser = add(VERB, help="MIG instances that the agent did not make", epilog=epilog)
    verbs = parser.add_subparsers(dest="foreign_verb", required=True, metavar="list|destroy")
    listing = verbs.add_parser("list", help="list them", epilog=epilog)
    destroying = verbs.add_parser(
        "destroy", help="destroy one that nobody uses, while no agent runs", epilog=epilog
    )
    destroying.add_argument("name", metavar="NAME", help="as `agent foreign list` has it")
    add_yes_argument(destroying)
    for each in (listing, destroying):
        add_state_argument(each, "the agent's state, which tells what is its")
        add_output_argument(each)


def run(args: argparse.Namespace) -> int:
    """Do what the verb says; 0, or the refusal."""
    from apportion.agent.nvml import DriverError

    try:
        return _list(args) if args.foreign_verb == "list" else _destroy(args)
    except DriverError as error:
        raise UnavailableError(error.message, details={"reason": error.reason}) from error


def _list(args: argparse.Namespace) -> int:
    from apportion.agent.foreign import list_foreign

    with naming({"state": "--state"}):
        found = list_foreign(args.state)
    if args.output != "table":
        print_data({"items": [_data(each) for each in found]}, args.output)
        return 0
    rows = [_row(each) for each in found]
    headers = ("name", "gpu", "profile", "start", "processes")
    sys.stdout.write((table(headers, rows) if rows else "The agent made all that is here.") + "\n")
    return 0


def _destroy(args: argparse.Namespace) -> int:
    from apportion.agent.foreign import destroy_foreign

    if not is_confirmed(args, f"Destroy {args.name}, which somebody made by hand?"):
        return 1
    with naming({"state": "--state"}):
        gone = destroy_foreign(args.state, args.name)
    if args.output != "table":
        print_data(_data(gone), args.output)
    else:
        sys.stdout.write(f"{gone.instance.profile} at {gone.instance.place.start} is gone\n")
    return 0


def _row(each: "Foreign") -> tuple[object, ...]:
    instance = each.instance
    pids = ", ".join(map(str, instance.pids)) or "-"
    return (each.name, each.gpu, instance.profile, instance.place.start, pids)


def _data(each: "Foreign") -> dict[str, object]:
    instance = each.instance
    return {
        "name": each.name,
        "gpu": each.gpu,
        "profile": instance.profile,
        "start": instance.place.start,
        "processes": list(instance.pids),
    }
