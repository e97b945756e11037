"""`apportion fleet`: tenants, sites, pools, offers, quotas and policies as one file."""

import argparse
import json
import sys
from typing import TYPE_CHECKING, Final

from apportion.cli.confirming import add_yes_argument, is_confirmed
from apportion.cli.connection import add_server_arguments, connect
from apportion.cli.documents import read_text
from apportion.cli.output import print_data
from apportion.errors import ApportionError, InvalidInputError

if TYPE_CHECKING:
    from pathlib import Path

    from apportion.client import Client
    from apportion.fleet.service import FleetFile, Plan, Server
    from apportion.fleet.steps import Step

_EXAMPLES: Final = """\
A plan changes nothing. Applying does what the plan says, in order; when it is interrupted, apply
again: what is done is done, and the rest follows. What the file does not name is left alone;
--prune removes it, of the sections that the file has.

examples:
  apportion fleet export > fleet.yaml
  apportion fleet plan -f fleet.yaml
  apportion fleet plan -f fleet.yaml --check
  apportion fleet apply -f fleet.yaml
  apportion fleet apply -f fleet.yaml --prune --yes
  apportion fleet schema > fleet.schema.json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `export`, `plan`, `apply` and `schema`."""
    parser.epilog = _EXAMPLES
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="export|plan|apply|schema")
    export = verbs.add_parser("export", help="write what is there as a file", epilog=_EXAMPLES)
    export.add_argument("-f", "--file", metavar="FILE", help="where to (default: standard output)")
    add_server_arguments(export)
    plan = verbs.add_parser("plan", help="show what apply would do", epilog=_EXAMPLES)
    apply = verbs.add_parser("apply", help="make the server as the file says", epilog=_EXAMPLES)
    for verb in (plan, apply):
        verb.add_argument(
            "-f", "--file", required=True, metavar="FILE", help="YAML or JSON; - for stdin"
        )
        verb.add_argument(
            "--prune", action="store_true", help="remove what is there and not in the file"
        )
        add_server_arguments(verb)
    plan.add_argument("--check", action="store_true", help="exit with 1 if anything would change")
    add_yes_argument(apply)
    verbs.add_parser("schema", help="print the JSON Schema of the file", epilog=_EXAMPLES)


def run(args: argparse.Namespace) -> int:
    """Do what the verb says; 1 for a plan that is refused, and with --check for one with steps."""
    from apportion.fleet.service import Server, fleet_schema, read_fleet

    if args.verb == "schema":
        sys.stdout.write(json.dumps(fleet_schema(), indent=2) + "\n")
        return 0
    if args.verb == "export":
        with Server(lambda tenant: _connect(args, tenant)) as server:
            return _export(args, server)
    name = "standard input" if args.file == "-" else args.file
    file = read_fleet(read_text(args.file, field="--file"), name)
    with Server(lambda tenant: _connect(args, tenant)) as server:
        return _plan(args, file, server) if args.verb == "plan" else _apply(args, file, server)


def _connect(args: argparse.Namespace, tenant: str | None) -> "Client":
    return connect(
        args if tenant is None else argparse.Namespace(**{**vars(args), "tenant": tenant})
    )


def _export(args: argparse.Namespace, server: "Server") -> int:
    from apportion.fleet.service import export_fleet, to_yaml

    fleet = export_fleet(server)
    if args.file is None or args.file == "-":
        if args.output == "json":
            print_data(fleet, "json")
        else:
            sys.stdout.write(to_yaml(fleet))
        return 0
    from pathlib import Path

    _write(Path(args.file), to_yaml(fleet))
    sys.stdout.write(f"{args.file} is written; `apportion fleet plan -f {args.file}` compares\n")
    return 0


def _write(path: "Path", text: str) -> None:
    """Write the whole file or leave the one that is there: never half of it."""
    fresh = path.with_name(path.name + ".new")
    try:
        fresh.write_text(text, "utf-8")
        fresh.replace(path)
    except OSError as error:
        raise InvalidInputError(
            f"cannot be written: {error.strerror}", field="--file", given=str(path)
        ) from None


def _plan(args: argparse.Namespace, file: "FleetFile", server: "Server") -> int:
    from apportion.fleet.service import data_of, plan_fleet

    plan, _ = plan_fleet(file, server, prune=args.prune)
    if args.output == "table":
        _show(plan)
    else:
        print_data(data_of(plan), args.output)
    return 1 if plan.refusals or (args.check and plan.steps) else 0


def _apply(args: argparse.Namespace, file: "FleetFile", server: "Server") -> int:
    from apportion.fleet.service import apply_plan, check_unchanged, data_of, plan_fleet

    plan, there = plan_fleet(file, server, prune=args.prune)
    is_table = args.output == "table"
    if is_table:
        _show(plan)
    if plan.refusals or not plan.steps:
        if not is_table:
            print_data(data_of(plan), args.output)
        return 1 if plan.refusals else 0
    sys.stdout.flush()
    if not is_confirmed(args, "Do this?"):
        return 1
    if not args.yes:  # a person took a while to read
        now, there = plan_fleet(file, server, prune=args.prune)
        check_unchanged(plan, now)
    count = len(plan.steps)

    def told(number: int, step: "Step") -> None:
        if is_table:
            from apportion.fleet.rendering import title_of

            sys.stdout.write(f"[{number}/{count}] {title_of(step)}: done\n")
            sys.stdout.flush()

    try:
        apply_plan(plan, there, server, told=told)
    except ApportionError as error:
        _say_where(error, plan)
        raise
    if not is_table:
        print_data(data_of(plan), args.output)
    return 0


def _show(plan: "Plan") -> None:
    from apportion.fleet.rendering import plan_lines

    sys.stdout.write("\n".join(plan_lines(plan)) + "\n")


def _say_where(error: ApportionError, plan: "Plan") -> None:
    """Tell at which step it stopped, and that applying again goes on from there."""
    from apportion.fleet.rendering import title_of

    number = error.details.get("step")
    if not isinstance(number, int):
        return
    step = plan.steps[number - 1]
    told = (
        f"It stopped at step {number} of {len(plan.steps)}, {title_of(step)}; what was done before "
        "stays done, and applying again does the rest"
    )
    error.hint = told if error.hint is None else f"{error.hint}. {told}"
