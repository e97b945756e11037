"""`apportion role`: the built-in roles and what each may do."""

import argparse
import sys
from typing import TYPE_CHECKING, Final

from apportion.authority.actions import ROLES
from apportion.cli.connection import add_server_arguments, connect
from apportion.cli.listing import data_of
from apportion.cli.output import print_data, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from apportion.tenants.schemas import RoleView

_EXAMPLES: Final = """\
A token can do what its role may, unless a policy of its tenant or of one above forbids it; policies
can permit more, too.

examples:
  apportion role list
  apportion role list -o yaml                the policies that say so, in Cedar"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `list`."""
    parser.epilog = _EXAMPLES
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="list")
    listing = verbs.add_parser("list", help="list roles by action", epilog=_EXAMPLES)
    add_server_arguments(listing)


def run(args: argparse.Namespace) -> int:
    """List the roles; 0, or the server's refusal."""
    with connect(args) as client:
        roles = list(client.list_roles().all())
    if args.output != "table":
        print_data({"items": [data_of(role) for role in roles]}, args.output)
    else:
        sys.stdout.write(_grid(roles) + "\n")
    return 0


def _grid(roles: "Sequence[RoleView]") -> str:
    roles = sorted(roles, key=lambda role: ROLES.index(role.role))
    actions = sorted({action for role in roles for action in role.actions})
    rows = [
        (action, *("yes" if action in role.actions else "" for role in roles)) for action in actions
    ]
    return table(("action", *(role.role for role in roles)), rows)
