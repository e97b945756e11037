"""`apportion pool`: pools of GPUs, one GPU model and one way to share them each."""

import argparse
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from apportion.cli.arguments import whole_number
from apportion.cli.calendar_text import add_pool_calendar_arguments, run_pool_calendar
from apportion.cli.connection import add_server_arguments, connect, find_pool, naming
from apportion.cli.listing import LIMIT_MAX, add_list_arguments, data_of, print_list
from apportion.cli.output import print_data
from apportion.cli.pool_change import (
    add_archive_arguments,
    add_update_arguments,
    archive,
    update,
)
from apportion.cli.pool_create import (
    FLAGS,
    add_create_arguments,
    add_validate_arguments,
    create,
    validate,
)
from apportion.cli.pool_offer import (
    add_offer_arguments,
    add_offers_arguments,
    add_unoffer_arguments,
    offer,
    offers,
    unoffer,
)
from apportion.cli.pool_text import POOL_HEADERS, capacity_lines, pool_lines, pool_row
from apportion.cli.pool_words import CLASSES, SHARINGS
from apportion.cli.site import find_site
from apportion.errors import InvalidInputError

if TYPE_CHECKING:
    from apportion.cli.holding import HeldGpu
    from apportion.client import Client
    from apportion.pools.schemas import PoolView

_EMPTY = "No pools. Create one: apportion pool create NAME --gpu-model H100 --sharing mig"
_DRAWN_DEFAULT = 8
_EXAMPLES = """\
A pool's own quota covers what --quota names, and whole GPUs (gpu) where nothing is named.

examples:
  apportion pool create notebooks --gpu-model H100 --sharing mig --quota gpu.mig=unlimited
  apportion pool create inference --gpu-model L4 --sharing mps --replicas 4 --quota gpu.slot=40
  apportion pool create batch --gpu-model T4 --sharing timeslice --shares --quota gpu.share=5000
  apportion pool validate notebooks --gpu-model H100 --policy policy.json
  apportion pool list --owned
  apportion pool show notebooks --draw
  apportion pool calendar notebooks --node dgx-01
  apportion pool update notebooks --set maxPending=6h --unset placement
  apportion pool offer notebooks acme --quota gpu.mig=32 --priority 10
  apportion pool offers notebooks
  apportion pool unoffer notebooks acme --yes
  apportion pool archive notebooks --yes"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verbs of a pool's life."""
    parser.epilog = _EXAMPLES
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="|".join(_VERBS))
    for name, (text, add, _) in _VERBS.items():
        add(verbs.add_parser(name, help=text, epilog=_EXAMPLES))


def run(args: argparse.Namespace) -> int:
    """Do what the verb says; 0, or the server's refusal."""
    with connect(args) as client:
        return _VERBS[args.verb][2](args, client)


def _add_list_arguments(listing: argparse.ArgumentParser) -> None:
    listing.add_argument(
        "--gpu-model", metavar="MODEL", help="only of this GPU model, such as H100"
    )
    listing.add_argument("--sharing", choices=SHARINGS, help="only of this sharing mode")
    listing.add_argument("--class", dest="cls", choices=CLASSES, help="only of this class")
    listing.add_argument("--site", metavar="SITE", help="only in this site, by name or id")
    listing.add_argument(
        "--owned",
        action=argparse.BooleanOptionalAction,
        help="only one's own, or only those that are offered",
    )
    listing.add_argument("--archived", action="store_true", help="those that are archived instead")
    add_list_arguments(listing)
    add_server_arguments(listing)


def _list(args: argparse.Namespace, client: "Client") -> int:
    fetch = partial(
        client.list_pools,
        gpu_model=args.gpu_model,
        sharing=args.sharing,
        class_=args.cls,
        site_id=None if args.site is None else find_site(client, args.site, field="--site").id,
        owned=args.owned,
        archived=args.archived or None,
    )
    with naming(FLAGS):
        return print_list(args, fetch, POOL_HEADERS, pool_row, empty=_EMPTY)


def _add_show_arguments(show: argparse.ArgumentParser) -> None:
    show.add_argument("pool", metavar="POOL", help="its name or id")
    show.add_argument("--draw", action="store_true", help="draw its GPUs with who holds what now")
    show.add_argument("--node", metavar="NAME", help="draw the GPUs of this node only")
    show.add_argument(
        "--limit",
        type=whole_number,
        metavar="N",
        help=f"the most GPUs to draw (default: {_DRAWN_DEFAULT})",
    )
    add_server_arguments(show)


def _show(args: argparse.Namespace, client: "Client") -> int:
    if not args.draw and (args.node is not None or args.limit is not None):
        raise InvalidInputError(
            "means something only together with --draw",
            field="--limit" if args.node is None else "--node",
            allowed="--draw",
        )
    pool = find_pool(client, args.pool, field="POOL")
    capacity = None if pool.archived else client.get_pool_capacity(pool.id)
    held = _held(args, client, pool) if args.draw else []
    if args.output != "table":
        drawn = {"gpus": [each.data() for each in held]} if args.draw else {}
        free = {} if capacity is None else {"capacity": data_of(capacity)}
        print_data({**data_of(pool), **free, **drawn}, args.output)
        return 0
    lines = [*pool_lines(pool), *([] if capacity is None else capacity_lines(capacity))]
    for each in held:
        lines += ["", *each.lines()]
    if args.draw and not held:
        where = "" if args.node is None else f" on {args.node}"
        lines += ["", f"No GPUs{where}. Import: apportion node import {pool.name} FILE"]
    sys.stdout.write("\n".join(lines) + "\n")
    if args.draw and len(held) == _drawn_most(args):
        sys.stderr.write(f"({len(held)} GPUs drawn; more with --limit, or a node's with --node)\n")
    return 0


def _held(args: argparse.Namespace, client: "Client", pool: "PoolView") -> "list[HeldGpu]":
    from apportion.cli.holding import held_gpus

    most = _drawn_most(args)
    if not 1 <= most <= LIMIT_MAX:
        raise InvalidInputError(
            "is out of range", field="--limit", given=most, allowed=f"1 to {LIMIT_MAX}"
        )
    with naming({"node": "--node"}):
        return list(held_gpus(client, pool, node=args.node, limit=most))


def _drawn_most(args: argparse.Namespace) -> int:
    return _DRAWN_DEFAULT if args.limit is None else args.limit


_Add = Callable[[argparse.ArgumentParser], None]
_Do = Callable[[argparse.Namespace, "Client"], int]
_VERBS: Final[Mapping[str, tuple[str, _Add, _Do]]] = {
    "create": ("create a pool", add_create_arguments, create),
    "list": ("list pools, one's own and offered ones", _add_list_arguments, _list),
    "show": ("show a pool, its quotas and its GPUs", _add_show_arguments, _show),
    "calendar": (
        "show when its GPUs are held",
        add_pool_calendar_arguments,
        run_pool_calendar,
    ),
    "update": ("change its policy or its GPU model", add_update_arguments, update),
    "validate": ("say what create or update would refuse", add_validate_arguments, validate),
    "archive": ("retire it: what runs there runs on", add_archive_arguments, archive),
    "offer": ("offer it to a tenant, with a quota", add_offer_arguments, offer),
    "unoffer": ("withdraw an offer", add_unoffer_arguments, unoffer),
    "offers": ("list whom it is offered to", add_offers_arguments, offers),
}
