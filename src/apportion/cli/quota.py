"""`apportion quota`: what a tenant may use of a pool, and what it does."""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from apportion.cli.connection import PoolNames, add_server_arguments, connect, find_pool, naming
from apportion.cli.listing import add_list_arguments, data_of, print_list
from apportion.cli.output import amount_text, print_data
from apportion.cli.pool import read_limit

if TYPE_CHECKING:
    from apportion.pools.schemas import QuotaView

RESOURCES: Final = ("gpu", "gpu.mig", "gpu.slot", "gpu.share", "vcpu", "memoryGiB")

_EMPTY = "No quotas, so nothing is granted. Set one: apportion quota set POOL gpu.mig 40"
_EXAMPLES = """\
A resource without a row grants 0, and so does the limit 0; a limit below what is used stops new
work and ends nothing. gpu, gpu.mig and gpu.slot count pieces, gpu.share hundredths of a GPU.

examples:
  apportion quota list notebooks
  apportion quota set notebooks gpu.mig 40
  apportion quota set notebooks vcpu unlimited"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `list` and `set`."""
    parser.epilog = _EXAMPLES
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="list|set")
    listing = verbs.add_parser("list", help="list quotas", epilog=_EXAMPLES)
    listing.add_argument("pool", metavar="POOL", nargs="?", help="only of this pool")
    add_list_arguments(listing)
    add_server_arguments(listing)
    setting = verbs.add_parser("set", help="set a limit", epilog=_EXAMPLES)
    setting.add_argument("pool", metavar="POOL", help="the pool's name or id")
    setting.add_argument(
        "resource", metavar="RESOURCE", choices=RESOURCES, help=", ".join(RESOURCES)
    )
    setting.add_argument("limit", metavar="LIMIT", help="a whole number, or unlimited")
    add_server_arguments(setting)


def run(args: argparse.Namespace) -> int:
    """Do what the verb says; 0, or the server's refusal."""
    if args.verb == "set":
        return _set(args)
    with connect(args) as client:
        pool = None if args.pool is None else find_pool(client, args.pool, field="POOL")
        pools = PoolNames(client)

        def row(quota: "QuotaView") -> Sequence[object]:
            return (
                pools.name(quota.pool_id),
                quota.resource,
                amount_text(quota.max),
                amount_text(quota.used),
                amount_text(quota.available),
            )

        fetch = partial(client.list_quotas, pool_id=None if pool is None else pool.id)
        headers = ("pool", "resource", "limit", "used", "available")
        return print_list(args, fetch, headers, row, empty=_EMPTY)


def _set(args: argparse.Namespace) -> int:
    limit = read_limit(args.limit, field="LIMIT")
    with connect(args) as client, naming({"max": "LIMIT", "resource": "RESOURCE"}):
        pool = find_pool(client, args.pool, field="POOL")
        quota = client.set_quota({"pool_id": pool.id, "resource": args.resource, "max": limit})
    if args.output != "table":
        print_data(data_of(quota), args.output)
        return 0
    amounts = {"limit": quota.max, "used": quota.used, "available": quota.available}
    words = ", ".join(f"{what} {amount_text(amount)}" for what, amount in amounts.items())
    sys.stdout.write(f"{pool.name} {quota.resource}: {words}\n")
    return 0
