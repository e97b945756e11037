"""`apportion caller`: who this token stands for, and what it may do at all."""

import argparse
from typing import Final

from apportion.cli.connection import add_server_arguments, connect
from apportion.cli.showing import fact_lines, print_view
from apportion.cli.times import both_zones

_EXAMPLES: Final = """\
examples:
  apportion caller show
  apportion caller show --tenant acme        as what one acts for a tenant below"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `show`."""
    parser.epilog = _EXAMPLES
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="show")
    show = verbs.add_parser("show", help="show tenant, role, scope and expiry", epilog=_EXAMPLES)
    add_server_arguments(show)


def run(args: argparse.Namespace) -> int:
    """Show the caller; 0, or the server's refusal."""
    with connect(args) as client:
        caller = client.get_caller()
        url = client.url
    home = caller.home_tenant_id
    facts = {
        "server": url,
        "token": caller.token_id,
        "role": caller.role,
        "actions": ", ".join(caller.actions),
        "until": "ever" if caller.expires_at is None else both_zones(caller.expires_at),
        "token of": None if home == caller.tenant_id else home,
    }
    return print_view(args, caller, fact_lines(f"tenant {caller.tenant_id}", facts))
