"""`apportion atom`: what can be booked: whole GPUs, MIG instances, slots and free shares."""

import argparse
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from apportion.cli.connection import add_server_arguments, connect, find_pool, naming
from apportion.cli.listing import add_list_arguments, print_list

if TYPE_CHECKING:
    from apportion.nodes.schemas import AtomView

CLASSES: Final = ("gpu", "gpu.mig", "gpu.slot", "gpu.share")

_EMPTY = "No such atoms. They come from the nodes' reports: apportion node import POOL FILE"
_FLAGS = {"gpu_id": "--gpu", "profile": "--profile"}
_EXAMPLES = """\
examples:
  apportion atom list --pool notebooks --bookable
  apportion atom list --class gpu.mig --profile 3g.40gb
  apportion atom list --unbookable          with the reason of each"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `list`."""
    parser.epilog = _EXAMPLES
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="list")
    listing = verbs.add_parser("list", help="list what can be booked", epilog=_EXAMPLES)
    listing.add_argument("--pool", metavar="POOL", help="only of this pool, by name or id")
    listing.add_argument("--gpu", metavar="UUID", help="only of this GPU")
    listing.add_argument("--class", dest="cls", choices=CLASSES, help="only of this class")
    listing.add_argument("--profile", metavar="PROFILE", help="only this MIG profile")
    can = listing.add_mutually_exclusive_group()
    can.add_argument("--bookable", action="store_true", help="only those that can be booked")
    can.add_argument("--unbookable", action="store_true", help="only those that cannot, and why")
    add_list_arguments(listing)
    add_server_arguments(listing)


def run(args: argparse.Namespace) -> int:
    """List the atoms; 0, or the server's refusal."""
    with connect(args) as client, naming(_FLAGS):
        pool = None if args.pool is None else find_pool(client, args.pool, field="--pool")
        fetch = partial(
            client.list_atoms,
            pool_id=None if pool is None else pool.id,
            gpu_id=args.gpu,
            class_=args.cls,
            bookable=True if args.bookable else False if args.unbookable else None,
            profile=args.profile,
        )
        headers = ("atom", "class", "profile", "share", "node", "gpu", "bookable")
        return print_list(args, fetch, headers, _row, empty=_EMPTY)


def _row(atom: "AtomView") -> Sequence[object]:
    return (
        atom.id,
        atom.class_,
        atom.attributes.get("migProfile"),
        str(atom.share),
        atom.node,
        atom.attributes.get("gpuIndex"),
        "yes" if atom.bookable else f"no: {atom.reason}",
    )
