"""`apportion env`: what a shell needs to use what a reservation has."""

import argparse
import shlex
import sys

from apportion.cli.connection import add_server_arguments, connect, naming
from apportion.cli.device_environment import environment_of
from apportion.cli.output import print_data

_EXAMPLES = """\
Printed for a POSIX shell; nothing of it is secret. It selects devices on the node that has them,
which `apportion reservation show` names. `-o json` prints it for programs.

examples:
  eval "$(apportion env res_01k...)" && python train.py
  apportion env res_01k... --node dgx-02          a gang's member
  apportion env res_01k... -o json

exit codes: 0 printed; 1 it has no devices now: it waits, is over, or the node is still making them
(device-missing); 2 bad input"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add which reservation, and which of its nodes."""
    parser.epilog = _EXAMPLES
    parser.add_argument("id", metavar="RESERVATION", help="its id")
    parser.add_argument("--node", metavar="NAME", help="the node, where it lies on several")
    add_server_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the variables; 0, or the server's refusal."""
    with connect(args) as client, naming({"reservation_id": "RESERVATION"}):
        view = client.get_reservation(args.id)
        variables = environment_of(client, view, node=args.node)
    if args.output != "table":
        print_data(variables, args.output)
    else:
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()]
        sys.stdout.write("".join(lines))
    return 0
