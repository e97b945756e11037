"""`apportion pool`: pools of GPUs, one GPU model and one way to share them each."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from apportion.cli.arguments import whole_number
from apportion.cli.connection import add_server_arguments, connect, find_pool, naming
from apportion.cli.documents import parse_json, read_json
from apportion.cli.listing import LIMIT_MAX, add_list_arguments, data_of, print_list
from apportion.cli.output import amount_text, print_data, table
from apportion.cli.server_caps import part_class, split_capabilities
from apportion.cli.times import both_zones
from apportion.errors import InvalidInputError

if TYPE_CHECKING:
    from apportion.cli.holding import HeldGpu
    from apportion.client import Client
    from apportion.pools.schemas import PoolView, QuotaView

SHARINGS: Final = ("exclusive", "mig", "timeslice", "mps")
ATOM_CLASSES: Final = ("gpu", "gpu.mig", "gpu.slot", "gpu.share")
CLASSES: Final = ("metal-host", "vps-host", "kubernetes-host", "slurm-host", "provider")

_EMPTY = "No pools. Create one: apportion pool create NAME --gpu-model H100 --sharing mig"
_DRAWN_DEFAULT = 8
_FLAGS: Final = {
    "name": "NAME",
    "gpu_model": "--gpu-model",
    "sharing": "--sharing",
    "class": "--class",
    "site_id": "--site",
    "provider_account_id": "--provider-account",
    "policy": "--policy",
    "policy.replicas": "--replicas",
    "policy.shares": "--shares",
    "owner_quota": "--quota",
    "idempotency_key": "--key",
}
_EXAMPLES = """\
A pool's own quota covers what --quota names, and whole GPUs (gpu) where nothing is named.

examples:
  apportion pool create notebooks --gpu-model H100 --sharing mig --quota gpu.mig=unlimited
  apportion pool create inference --gpu-model L4 --sharing mps --replicas 4 --quota gpu.slot=40
  apportion pool create batch --gpu-model T4 --sharing timeslice --shares --quota gpu.share=5000
  apportion pool list
  apportion pool show notebooks --draw"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `create`, `list` and `show`."""
    parser.epilog = _EXAMPLES
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="create|list|show")
    _add_create(verbs.add_parser("create", help="create a pool", epilog=_EXAMPLES))
    listing = verbs.add_parser("list", help="list pools", epilog=_EXAMPLES)
    listing.add_argument(
        "--gpu-model", metavar="MODEL", help="only of this GPU model, such as H100"
    )
    listing.add_argument("--sharing", choices=SHARINGS, help="only of this sharing mode")
    add_list_arguments(listing)
    add_server_arguments(listing)
    show = verbs.add_parser("show", help="show a pool, its quotas and its GPUs", epilog=_EXAMPLES)
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


def run(args: argparse.Namespace) -> int:
    """Do what the verb says; 0, or the server's refusal."""
    with connect(args) as client:
        if args.verb == "create":
            return _create(args, client)
        if args.verb == "show":
            return _show(args, client)
        fetch = partial(client.list_pools, gpu_model=args.gpu_model, sharing=args.sharing)
        with naming(_FLAGS):
            headers = ("name", "model", "sharing", "class", "quota used", "id")
            return print_list(args, fetch, headers, _row, empty=_EMPTY)


def _add_create(create: argparse.ArgumentParser) -> None:
    create.add_argument("name", metavar="NAME", help="lower-case letters, digits, - and .")
    create.add_argument("--gpu-model", required=True, metavar="MODEL", help="such as H100")
    create.add_argument("--sharing", choices=SHARINGS, default="exclusive", help="exclusive if not")
    create.add_argument(
        "--class", dest="cls", choices=CLASSES, default="metal-host", help="metal-host if not"
    )
    split = create.add_mutually_exclusive_group()
    split.add_argument(
        "--replicas", type=whole_number, metavar="N", help="fixed slots a GPU, 1 to 48"
    )
    split.add_argument("--shares", action="store_true", help="free shares: hundredths of a GPU")
    create.add_argument("--policy", metavar="FILE|JSON", help="further policy, a JSON object")
    create.add_argument(
        "--quota",
        action="append",
        default=[],
        metavar="RESOURCE=LIMIT",
        help="gpu, gpu.mig, gpu.slot, gpu.share, vcpu or memoryGiB; a number or unlimited (again "
        "for more)",
    )
    create.add_argument("--site", metavar="ID", help="needed where there are several sites")
    create.add_argument("--provider-account", metavar="ID", help="for the class provider")
    create.add_argument("--key", help="idempotency key: the same one never creates a second pool")
    add_server_arguments(create)


def _create(args: argparse.Namespace, client: "Client") -> int:
    body: dict[str, Any] = {
        "name": args.name,
        "gpu_model": args.gpu_model,
        "sharing": args.sharing,
        "class": args.cls,
        "policy": _policy(args),
        "site_id": args.site,
        "provider_account_id": args.provider_account,
        "idempotency_key": args.key,
    }
    if args.quota:
        body["owner_quota"] = dict(_quota(text) for text in args.quota)
    with naming(_FLAGS):
        pool = client.create_pool(body)
    if args.output != "table":
        print_data(data_of(pool), args.output)
        return 0
    lines = [*_facts(pool), "", "Next:", f"  apportion node import {pool.name} FILE"]
    granted = {quota.resource for quota in pool.quotas}
    missing = part_class(pool)
    if missing not in granted:
        lines.append(
            f"  apportion quota set {pool.name} {missing} unlimited"
            f"    (without it every ask for {missing} is refused)"
        )
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _policy(args: argparse.Namespace) -> Mapping[str, Any]:
    policy: dict[str, Any] = {}
    if args.policy is not None:
        found = (
            parse_json(args.policy, field="--policy")
            if args.policy.lstrip().startswith("{")
            else read_json(args.policy, field="--policy")
        )
        if not isinstance(found, dict):
            raise InvalidInputError("is no JSON object", field="--policy", given=args.policy[:60])
        policy.update(cast("dict[str, Any]", found))
    split = {"replicas": args.replicas, "shares": 100 if args.shares else None}
    for name, value in split.items():
        if value is None:
            continue
        if name in policy:
            raise InvalidInputError(
                f"the policy has {name} too", field=f"--{name}", given=value, allowed="one of them"
            )
        policy[name] = value
    return policy


def _quota(text: str) -> tuple[str, int | str]:
    resource, equals, limit = text.partition("=")
    if not equals or not resource:
        raise InvalidInputError(
            "is no limit", field="--quota", given=text[:60], allowed="RESOURCE=LIMIT"
        )
    return resource, read_limit(limit, field="--quota")


def read_limit(text: str, *, field: str) -> int | str:
    """Read a quota's limit: a whole number, or the word unlimited."""
    if text == "unlimited":
        return text
    try:
        return whole_number(text)
    except argparse.ArgumentTypeError:
        raise InvalidInputError(
            "is no limit", field=field, given=text[:60], allowed="a whole number, or unlimited"
        ) from None


def _show(args: argparse.Namespace, client: "Client") -> int:
    if not args.draw and (args.node is not None or args.limit is not None):
        raise InvalidInputError(
            "means something only together with --draw",
            field="--limit" if args.node is None else "--node",
            allowed="--draw",
        )
    pool = find_pool(client, args.pool, field="POOL")
    held = _held(args, client, pool) if args.draw else []
    if args.output != "table":
        drawn = {"gpus": [each.data() for each in held]} if args.draw else {}
        print_data({**data_of(pool), **drawn}, args.output)
        return 0
    lines = _facts(pool)
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
        return list(held_gpus(client, pool, datetime.now(UTC), node=args.node, limit=most))


def _drawn_most(args: argparse.Namespace) -> int:
    return _DRAWN_DEFAULT if args.limit is None else args.limit


def _row(pool: "PoolView") -> Sequence[object]:
    used = [
        f"{each.resource} {_used(each)}" for each in pool.quotas if each.resource in ATOM_CLASSES
    ]
    return (
        pool.name,
        pool.gpu_model,
        _sharing(pool),
        pool.class_,
        ", ".join(used) or "none",
        pool.id,
    )


def _facts(pool: "PoolView") -> list[str]:
    rows = {
        "id": pool.id,
        "GPU model": pool.gpu_model,
        "sharing": _sharing(pool),
        "class": pool.class_,
        "site": pool.site_id,
        "created": both_zones(pool.created_at),
        "policy": json.dumps(pool.policy) if pool.policy else "none",
    }
    lines = [pool.name, *(f"  {name:<10} {value}" for name, value in rows.items())]
    if pool.quotas:
        quotas = [
            (quota.resource, amount_text(quota.max), amount_text(quota.used))
            for quota in pool.quotas
        ]
        lines += ["", table(("quota", "limit", "used"), quotas)]
    return lines


def _sharing(pool: "PoolView") -> str:
    caps = split_capabilities(pool)
    if caps.slots_per_gpu is not None:
        return f"{pool.sharing}, {caps.slots_per_gpu} slots"
    if caps.shares_per_gpu is not None:
        return f"{pool.sharing}, {caps.shares_per_gpu} shares"
    return pool.sharing


def _used(quota: "QuotaView") -> str:
    used = amount_text(quota.used)
    return used if quota.max == "unlimited" else f"{used} of {amount_text(quota.max)}"
