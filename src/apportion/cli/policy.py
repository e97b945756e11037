"""`apportion policy`: what a tenant's policies permit and forbid, and why an ask is decided so."""

import argparse
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from apportion.authority.actions import ROLES
from apportion.cli.arguments import whole_number
from apportion.cli.confirming import add_yes_argument, is_confirmed
from apportion.cli.connection import add_server_arguments, connect, find_pool, naming
from apportion.cli.documents import read_text
from apportion.cli.finding import is_id, the_one
from apportion.cli.listing import LIMIT_MAX, add_list_arguments, data_of, print_list
from apportion.cli.output import print_data
from apportion.cli.pool_words import CLASSES, SHARINGS
from apportion.cli.showing import fact_lines, next_lines, print_view
from apportion.cli.times import both_zones, short_time
from apportion.errors import InvalidInputError
from apportion.quantities.windows import parse_duration

if TYPE_CHECKING:
    from apportion.client import Client
    from apportion.tenants.schemas import PolicyRuling, PolicyView

_EMPTY = "No policies: the roles alone decide. Add one: apportion policy create NAME -f FILE"
_FLAGS: Final = {
    "name": "NAME",
    "text": "--file",
    "description": "--description",
    "version": "--version",
    "idempotency_key": "--key",
    "action": "ACTION",
    "token_id": "--token",
    "role": "--role",
    "pool.gpuModel": "--gpu-model",
    "pool.class": "--class",
    "pool.sharing": "--sharing",
    "pool.region": "--region",
    "pool.owned": "--owned",
    "ask.gpuCount": "--gpu-count",
    "ask.gpuSlices": "--gpu-slices",
    "ask.durationSeconds": "--for",
}
_EXAMPLES: Final = """\
A policy is Cedar and holds for the tenant and all below it; a forbid beats every permit.
  forbid (principal, action == Action::"compute:reservations:create", resource)
  when { context.gpuCount > 8 };

examples:
  apportion policy create at-most-8 -f at-most-8.cedar
  apportion policy list
  apportion policy show at-most-8
  apportion policy check compute:reservations:create --pool h100 --gpu-count 9 --for 4h
  apportion policy check compute:pools:create --role operator --gpu-model H100 \\
      --class metal-host --sharing mig --region fra1 --owned
  apportion policy update at-most-8 -f at-most-8.cedar
  apportion policy delete at-most-8 --yes"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `create`, `list`, `show`, `update`, `delete` and `check`."""
    parser.epilog = _EXAMPLES
    verbs = parser.add_subparsers(
        dest="verb", required=True, metavar="create|list|show|update|delete|check"
    )
    create = verbs.add_parser("create", help="add a policy", epilog=_EXAMPLES)
    create.add_argument("name", metavar="NAME", help="lower-case letters, digits, - and .")
    create.add_argument("-f", "--file", required=True, metavar="FILE", help="its text; - for stdin")
    create.add_argument("--description", metavar="TEXT", help="what it is for")
    create.add_argument("--key", help="idempotency key: the same one never adds a second policy")
    add_server_arguments(create)
    listing = verbs.add_parser("list", help="list added policies", epilog=_EXAMPLES)
    add_list_arguments(listing)
    add_server_arguments(listing)
    show = verbs.add_parser("show", help="show one with its text", epilog=_EXAMPLES)
    update = verbs.add_parser("update", help="give it another text", epilog=_EXAMPLES)
    delete = verbs.add_parser("delete", help="take it away", epilog=_EXAMPLES)
    for verb in (show, update, delete):
        verb.add_argument("policy", metavar="POLICY", help="its name or id")
        add_server_arguments(verb)
    update.add_argument("-f", "--file", metavar="FILE", help="the new text; - for standard input")
    update.add_argument("--description", metavar="TEXT", help="what it is for")
    update.add_argument(
        "--version", type=whole_number, metavar="N", help="refuse if it is another one by now"
    )
    add_yes_argument(delete)
    _add_check(
        verbs.add_parser(
            "check", help="say what is decided and why: 0 allowed, 1 denied", epilog=_EXAMPLES
        )
    )


def _add_check(check: argparse.ArgumentParser) -> None:
    check.add_argument("action", metavar="ACTION", help="such as compute:reservations:create")
    who = check.add_mutually_exclusive_group()
    who.add_argument("--token", metavar="ID", help="for this token (default: one's own)")
    who.add_argument("--role", choices=ROLES, help="for any token of this role")
    pool = check.add_argument_group("the pool that it is about")
    pool.add_argument("--pool", metavar="POOL", help="what this pool is, by name or id")
    pool.add_argument("--gpu-model", metavar="MODEL", help="such as H100")
    pool.add_argument("--class", dest="cls", choices=CLASSES, help="its class")
    pool.add_argument("--sharing", choices=SHARINGS, help="its sharing mode")
    pool.add_argument("--region", metavar="NAME", help="its site's region")
    pool.add_argument(
        "--owned", action=argparse.BooleanOptionalAction, help="whether it is the tenant's own"
    )
    ask = check.add_argument_group("the GPUs that are asked for")
    ask.add_argument(
        "--gpu-count", type=whole_number, metavar="N", default=0, help="whole GPUs (default: 0)"
    )
    ask.add_argument(
        "--gpu-slices", type=whole_number, metavar="N", default=0, help="parts (default: 0)"
    )
    ask.add_argument("--for", dest="duration", metavar="TIME", help="how long, such as 4h")
    add_server_arguments(check)


def run(args: argparse.Namespace) -> int:
    """Do what the verb says; 0, or the server's refusal. `check` gives 1 for what is denied."""
    with connect(args) as client, naming(_FLAGS):
        if args.verb == "list":
            headers = ("name", "effect", "tenant", "version", "changed", "description", "id")
            return print_list(args, client.list_policies, headers, _row, empty=_EMPTY)
        if args.verb == "check":
            return _check(args, client)
        if args.verb == "create":
            policy = client.create_policy(_created(args))
            following = next_lines("apportion policy check ACTION --role member")
            return print_view(args, policy, [*_lines(policy), *following])
        policy = _find(client, args.policy)
        if args.verb == "delete":
            return _delete(args, client, policy)
        if args.verb == "update":
            policy = client.update_policy(policy.id, _updated(args, policy))
        return print_view(args, policy, _lines(policy))


def _find(client: "Client", text: str) -> "PolicyView":
    if is_id(text):
        with naming({"policy_id": "POLICY"}):
            return client.get_policy(text)
    found = client.list_policies(limit=LIMIT_MAX).all()
    return the_one(found, text, field="POLICY", what="policy")


def _created(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "name": args.name,
        "text": read_text(args.file, field="--file"),
        "description": args.description or "",
        "idempotency_key": args.key,
    }


def _updated(args: argparse.Namespace, policy: "PolicyView") -> dict[str, Any]:
    if args.file is None and args.description is None:
        raise InvalidInputError(
            "says nothing to change", field="--file", allowed="--file, --description, or both"
        )
    return {
        "version": policy.version if args.version is None else args.version,
        "text": None if args.file is None else read_text(args.file, field="--file"),
        "description": args.description,
    }


def _delete(args: argparse.Namespace, client: "Client", policy: "PolicyView") -> int:
    if not is_confirmed(args, f"Delete the policy {policy.name} ({policy.effect})?"):
        return 1
    done = client.delete_policy(policy.id)
    return print_view(args, done, [f"{policy.name} is deleted"])


def _row(policy: "PolicyView") -> Sequence[object]:
    return (
        policy.name,
        policy.effect,
        policy.tenant_id,
        policy.version,
        short_time(policy.updated_at),
        policy.description,
        policy.id,
    )


def _lines(policy: "PolicyView") -> list[str]:
    facts = {
        "id": policy.id,
        "tenant": policy.tenant_id,
        "about": policy.description or None,
        "version": policy.version,
        "changed": both_zones(policy.updated_at),
    }
    return [*fact_lines(f"{policy.name} ({policy.effect})", facts), "", policy.text.rstrip()]


def _check(args: argparse.Namespace, client: "Client") -> int:
    ask: dict[str, Any] = {"gpuCount": args.gpu_count, "gpuSlices": args.gpu_slices}
    if args.duration is not None:
        duration = parse_duration(args.duration, field="--for")
        ask["durationSeconds"] = duration // timedelta(seconds=1)
    ruling = client.check_policy(
        {
            "action": args.action,
            "token_id": args.token,
            "role": args.role,
            "pool": _pool(args, client),
            "ask": ask,
        }
    )
    if args.output == "table":
        sys.stdout.write("\n".join(_ruling_lines(ruling)) + "\n")
    else:
        print_data(data_of(ruling), args.output)
    return 0 if ruling.allowed else 1


def _pool(args: argparse.Namespace, client: "Client") -> dict[str, Any] | None:
    """Give the attributes: those of the pool that is named, and the flags' over them."""
    found: dict[str, Any] = {}
    if args.pool is not None:
        pool = find_pool(client, args.pool, field="--pool")
        found = {
            "gpuModel": pool.gpu_model,
            "class": pool.class_,
            "sharing": pool.sharing,
            "region": pool.region,
            "owned": pool.owned,
        }
    flags = {
        "gpuModel": args.gpu_model,
        "class": args.cls,
        "sharing": args.sharing,
        "region": args.region,
        "owned": args.owned,
    }
    found |= {name: value for name, value in flags.items() if value is not None}
    return found or None


def _ruling_lines(ruling: "PolicyRuling") -> list[str]:
    lines = [f"{'allowed' if ruling.allowed else 'denied'}: {ruling.message}"]
    for policy in ruling.policies:
        origin = "built in" if policy.builtin else f"of tenant {policy.tenant_id}"
        lines += ["", f"{policy.effect} by {policy.name} ({origin})"]
        lines += [f"  {line}" for line in policy.text.strip().splitlines()]
    lines += [f"could not be evaluated: {error}" for error in ruling.errors]
    return lines
