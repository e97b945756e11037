"""`apportion pool create` and `pool validate`: a new pool, or what would refuse it."""

import argparse
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from apportion.cli.arguments import whole_number
from apportion.cli.connection import add_server_arguments, find_pool, naming
from apportion.cli.listing import data_of
from apportion.cli.output import print_data
from apportion.cli.pool_change import add_change_arguments, change_of, policy_flag
from apportion.cli.pool_policy import read_policy_argument, tell_unknown, unknown_line
from apportion.cli.pool_text import pool_lines
from apportion.cli.pool_words import AGENTS, CLASSES, SHARINGS, add_quota_argument, read_quota
from apportion.cli.server_caps import part_class
from apportion.cli.showing import next_lines, print_view
from apportion.cli.site import find_site
from apportion.errors import ApportionError, InvalidInputError

if TYPE_CHECKING:
    from apportion.client import Client
    from apportion.doors.schemas import Problem

FLAGS: Final = {
    "name": "NAME",
    "gpu_model": "--gpu-model",
    "sharing": "--sharing",
    "class": "--class",
    "site_id": "--site",
    "agent": "--agent",
    "provider_account_id": "--provider-account",
    "policy": "--policy",
    "policy.replicas": "--replicas",
    "policy.shares": "--shares",
    "owner_quota": "--quota",
    "idempotency_key": "--key",
}

_PARTS: Final = {
    f"{part}.{field}": flag for part in ("create", "update") for field, flag in FLAGS.items()
}
_ONLY_NEW: Final = {
    "sharing": "--sharing",
    "cls": "--class",
    "replicas": "--replicas",
    "shares": "--shares",
    "quota": "--quota",
    "site": "--site",
    "agent": "--agent",
    "provider_account": "--provider-account",
}
_ONLY_CHANGED: Final = {"settings": "--set", "unset": "--unset", "version": "--version"}


def add_create_arguments(create: argparse.ArgumentParser) -> None:
    """Add what a new pool is."""
    create.add_argument("name", metavar="NAME", help="lower-case letters, digits, - and .")
    create.add_argument("--gpu-model", required=True, metavar="MODEL", help="such as H100")
    _add_kind(create)
    create.add_argument("--policy", metavar="FILE|JSON", help="further policy, a JSON object")
    create.add_argument("--key", help="idempotency key: the same one never creates a second pool")
    add_server_arguments(create)


def add_validate_arguments(validate: argparse.ArgumentParser) -> None:
    """Add what a new pool would be, or how one would be changed."""
    validate.add_argument("name", metavar="NAME", nargs="?", help="the name of a new pool")
    validate.add_argument("--pool", metavar="POOL", help="judge a change of this pool instead")
    _add_kind(validate)
    add_change_arguments(validate)
    add_server_arguments(validate)


def _add_kind(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sharing", choices=SHARINGS, help="how GPUs are shared: exclusive if not")
    parser.add_argument("--class", dest="cls", choices=CLASSES, help="metal-host if not")
    split = parser.add_mutually_exclusive_group()
    split.add_argument(
        "--replicas", type=whole_number, metavar="N", help="fixed slots a GPU, 1 to 48"
    )
    split.add_argument("--shares", action="store_true", help="free shares: hundredths of a GPU")
    add_quota_argument(parser)
    parser.add_argument(
        "--site", metavar="SITE", help="its name or id; needed where there are several"
    )
    parser.add_argument(
        "--agent", choices=AGENTS, help="who runs on its machines: none at a provider's"
    )
    parser.add_argument("--provider-account", metavar="ID", help="for the class provider")


def create(args: argparse.Namespace, client: "Client") -> int:
    """Create a pool and say what comes next."""
    body = {**_body(args, client), "idempotency_key": args.key}
    with naming(FLAGS):
        pool = client.create_pool(body)
    tell_unknown(pool.policy)
    lines = [*pool_lines(pool), *next_lines(f"apportion node import {pool.name} FILE")]
    missing = part_class(pool)
    if missing not in {quota.resource for quota in pool.quotas}:
        lines.append(
            f"  apportion quota set {pool.name} {missing} unlimited"
            f"    (without it every ask for {missing} is refused)"
        )
    return print_view(args, pool, lines)


def validate(args: argparse.Namespace, client: "Client") -> int:
    """Say what create or update would refuse; 1 where there is something."""
    if (args.name is None) == (args.pool is None):
        raise InvalidInputError(
            "is what judged: a new pool or a change?", field="NAME", allowed="NAME, or --pool POOL"
        )
    _refuse(args, _ONLY_NEW if args.name is None else _ONLY_CHANGED)
    if args.pool is not None:
        pool = find_pool(client, args.pool, field="--pool")
        request: dict[str, Any] = {"pool_id": pool.id, "update": change_of(args, pool)}
    elif args.gpu_model is None:
        raise InvalidInputError("is needed for a new pool", field="--gpu-model", allowed="H100, …")
    else:
        request = {"create": _body(args, client)}
    with naming({**FLAGS, **_PARTS, "update.policy": policy_flag(args)}):
        found = client.validate_pool(request)
    if args.output != "table":
        print_data(data_of(found), args.output)
    else:
        flags = {**FLAGS, "policy": policy_flag(args)}
        lines = [_problem(each, flags) for each in found.problems]
        lines += [unknown_line(name) for name in found.unknown_fields]
        lines.append("It would be accepted." if found.valid else "It would be refused.")
        sys.stdout.write("\n".join(lines) + "\n")
    return 0 if found.valid else 1


def _problem(problem: "Problem", flags: Mapping[str, str]) -> str:
    """Write a problem as it would be written if the request were made."""
    from apportion.client.answers import error_of_problem

    try:
        with naming(flags):
            raise error_of_problem(problem.model_dump())
    except ApportionError as error:
        return f"error: {error}"


def _refuse(args: argparse.Namespace, flags: Mapping[str, str]) -> None:
    """Refuse flags that mean nothing here, which would be ignored unseen."""
    for name, flag in flags.items():
        if getattr(args, name) not in (None, False, []):
            raise InvalidInputError(
                f"has no meaning {'without' if flags is _ONLY_CHANGED else 'together with'} --pool",
                field=flag,
            )


def _body(args: argparse.Namespace, client: "Client") -> dict[str, Any]:
    site = None if args.site is None else find_site(client, args.site, field="--site").id
    body: dict[str, Any] = {
        "name": args.name,
        "gpu_model": args.gpu_model,
        "sharing": args.sharing or "exclusive",
        "class": args.cls or "metal-host",
        "policy": _policy(args),
        "site_id": site,
        "agent": args.agent,
        "provider_account_id": args.provider_account,
    }
    if args.quota:
        body["owner_quota"] = dict(read_quota(text, field="--quota") for text in args.quota)
    return body


def _policy(args: argparse.Namespace) -> dict[str, Any]:
    policy = {} if args.policy is None else read_policy_argument(args.policy, field="--policy")
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
