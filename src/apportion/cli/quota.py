"""`apportion quota`: what a tenant may use of a pool, and what it does."""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from apportion.cli.connection import PoolNames, add_server_arguments, connect, find_pool, naming
from apportion.cli.listing import (
    LIMIT_DEFAULT,
    LIMIT_MAX,
    add_list_arguments,
    data_of,
    print_list,
)
from apportion.cli.output import amount_text, print_data, table
from apportion.cli.pool_words import LIMIT_GRAMMAR, RESOURCES, read_limit
from apportion.cli.showing import print_view
from apportion.cli.times import NO_END, short_time

if TYPE_CHECKING:
    from apportion.client import Client
    from apportion.pools.schemas import PoolView, QuotaView

_EMPTY = "No quotas, so nothing is granted. Set one: apportion quota set POOL gpu.mig 40"
_FLAGS: Final = {"max": "LIMIT", "resource": "RESOURCE", "tenant_id": "--of"}
_EXAMPLES = """\
A resource without a row grants 0, and so does the limit 0; a limit below what is used stops new
work and ends nothing. gpu, gpu.mig and gpu.slot count pieces, gpu.share hundredths of a GPU,
gpuEquivalents exact parts of whole GPUs. The owner of a pool says with --of whose quota it is.

examples:
  apportion quota list notebooks
  apportion quota set notebooks gpu.mig 40
  apportion quota set notebooks gpuEquivalents 7/2 --of acme
  apportion quota set notebooks vcpu unlimited
  apportion quota show notebooks gpu.mig
  apportion quota explain notebooks gpu.mig --of acme"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `list`, `set`, `show` and `explain`."""
    parser.epilog = _EXAMPLES
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="list|set|show|explain")
    listing = verbs.add_parser("list", help="list quotas", epilog=_EXAMPLES)
    listing.add_argument("pool", metavar="POOL", nargs="?", help="only of this pool")
    listing.add_argument(
        "--resource", metavar="RESOURCE", choices=RESOURCES, help="only of this resource"
    )
    _add_of(listing)
    add_list_arguments(listing)
    add_server_arguments(listing)
    setting = verbs.add_parser("set", help="set a limit", epilog=_EXAMPLES)
    _add_which(setting)
    setting.add_argument("limit", metavar="LIMIT", help=LIMIT_GRAMMAR)
    show = verbs.add_parser("show", help="show a limit and what is used", epilog=_EXAMPLES)
    _add_which(show)
    explain = verbs.add_parser("explain", help="say which reservations use it", epilog=_EXAMPLES)
    _add_which(explain)
    add_list_arguments(explain)


def _add_which(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pool", metavar="POOL", help="the pool's name or id")
    parser.add_argument(
        "resource", metavar="RESOURCE", choices=RESOURCES, help=", ".join(RESOURCES)
    )
    _add_of(parser)
    add_server_arguments(parser)


def _add_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--of", metavar="TENANT", help="whose quota (default: one's own)")


def run(args: argparse.Namespace) -> int:
    """Do what the verb says; 0, or the server's refusal."""
    with connect(args) as client, naming(_FLAGS):
        pool = None if args.pool is None else find_pool(client, args.pool, field="POOL")
        if args.verb == "list" or pool is None:
            return _list(args, client, pool)
        if args.verb == "explain":
            return _explain(args, client, pool)
        if args.verb == "show":
            quota = client.get_quota(pool.id, _tenant(args, client), args.resource)
        else:
            body = {
                "pool_id": pool.id,
                "tenant_id": args.of,
                "resource": args.resource,
                "max": read_limit(args.limit, field="LIMIT"),
            }
            quota = client.set_quota(body)
        return print_view(args, quota, [_line(pool, quota)])


def _tenant(args: argparse.Namespace, client: "Client") -> str:
    return client.get_caller().tenant_id if args.of is None else args.of


def _list(args: argparse.Namespace, client: "Client", pool: "PoolView | None") -> int:
    pools = PoolNames(client)

    def row(quota: "QuotaView") -> Sequence[object]:
        amounts = (quota.max, quota.used, quota.available)
        name = pools.name(quota.pool_id)
        return (name, quota.tenant_id, quota.resource, *map(amount_text, amounts))

    fetch = partial(
        client.list_quotas,
        pool_id=None if pool is None else pool.id,
        tenant_id=args.of,
        resource=args.resource,
    )
    headers = ("pool", "tenant", "resource", "limit", "used", "available")
    return print_list(args, fetch, headers, row, empty=_EMPTY)


def _line(pool: "PoolView", quota: "QuotaView") -> str:
    amounts = {"limit": quota.max, "used": quota.used, "available": quota.available}
    words = ", ".join(f"{what} {amount_text(amount)}" for what, amount in amounts.items())
    return f"{pool.name} {quota.resource}: {words}"


def _explain(args: argparse.Namespace, client: "Client", pool: "PoolView") -> int:
    """Show a quota and what uses it, page after page where all is wanted."""
    tenant = _tenant(args, client)
    with naming({"limit": "--limit", "cursor": "--cursor"}):
        limit = LIMIT_MAX if args.all else LIMIT_DEFAULT if args.limit is None else args.limit
        pages = [
            client.explain_quota(pool.id, tenant, args.resource, limit=limit, cursor=args.cursor)
        ]
        while args.all and (cursor := pages[-1].next_cursor) is not None:
            pages.append(
                client.explain_quota(pool.id, tenant, args.resource, limit=limit, cursor=cursor)
            )
    users = [each for page in pages for each in page.reservations]
    last = pages[-1]
    if args.output != "table":
        whole = {**data_of(last), "reservations": [data_of(each) for each in users]}
        print_data(whole, args.output)
        return 0
    rows = [
        (
            each.id,
            each.name,
            each.tenant_id,
            each.state,
            amount_text(each.amount),
            short_time(each.start),
            short_time(each.end) or NO_END,
        )
        for each in users
    ]
    headers = ("reservation", "name", "tenant", "state", "amount", "from", "until")
    using = ["", table(headers, rows)] if rows else ["", "Nothing uses it."]
    sys.stdout.write("\n".join([_line(pool, last.quota), *using]) + "\n")
    if last.next_cursor is not None:
        sys.stderr.write(f"(more: --all, or --cursor {last.next_cursor})\n")
    return 0
