"""`apportion token`: what programs and people call the server with."""

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from apportion.authority.actions import ROLES
from apportion.cli.confirming import add_yes_argument, is_confirmed
from apportion.cli.connection import add_server_arguments, connect, naming
from apportion.cli.listing import add_list_arguments, print_list
from apportion.cli.secret_file import print_issued, secret_file
from apportion.cli.showing import fact_lines, next_lines, print_view
from apportion.cli.times import both_zones, read_time, short_time
from apportion.cli.zones import add_zone_argument
from apportion.quantities.windows import format_instant

if TYPE_CHECKING:
    from apportion.client import Client
    from apportion.tenants.schemas import TokenIssued, TokenView

STATES: Final = ("active", "expired", "revoked")

_EMPTY = "No such tokens. Create one: apportion token create NAME --role member --out FILE"
_FLAGS: Final = {
    "name": "NAME",
    "role": "--role",
    "actions": "--action",
    "expires_in": "--for",
    "expires_at": "--until",
    "idempotency_key": "--key",
    "token_id": "ID",
    "overlap": "--overlap",
    "state": "--state",
}
_EXAMPLES: Final = """\
The secret is shown once, or written to a file that only its owner can read and not shown at all.
An action is exact (compute:pools:read), a family (compute:pools:*) or *.

examples:
  apportion token create ci --role member --for 90d --out ci.token
  apportion token create audit --role viewer --action 'compute:events:*' --tenant acme
  apportion token list --state active
  apportion token show tok_01k...
  apportion token rotate tok_01k... --overlap 1h --out ci.token
  apportion token revoke tok_01k... --yes"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `create`, `list`, `show`, `rotate` and `revoke`."""
    parser.epilog = _EXAMPLES
    verbs = parser.add_subparsers(
        dest="verb", required=True, metavar="create|list|show|rotate|revoke"
    )
    _add_create(verbs.add_parser("create", help="create a token", epilog=_EXAMPLES))
    listing = verbs.add_parser("list", help="list tokens, without secrets", epilog=_EXAMPLES)
    listing.add_argument("--state", choices=STATES, help="only in this state")
    listing.add_argument("--role", choices=ROLES, help="only of this role")
    add_list_arguments(listing)
    add_server_arguments(listing)
    show = verbs.add_parser("show", help="show one, without its secret", epilog=_EXAMPLES)
    rotate = verbs.add_parser("rotate", help="give it a new secret", epilog=_EXAMPLES)
    revoke = verbs.add_parser("revoke", help="end it now", epilog=_EXAMPLES)
    for verb in (show, rotate, revoke):
        verb.add_argument("id", metavar="ID", help="its id")
        add_server_arguments(verb)
    rotate.add_argument(
        "--overlap", metavar="TIME", help="how long the old secret goes on working, such as 1h"
    )
    rotate.add_argument("--out", metavar="FILE", help="write the secret here, in place of the old")
    add_yes_argument(revoke)


def _add_create(create: argparse.ArgumentParser) -> None:
    create.add_argument("name", metavar="NAME", help="what it is for")
    create.add_argument("--role", choices=ROLES, required=True, help="what it may do at most")
    create.add_argument(
        "--action",
        action="append",
        metavar="ACTION",
        help="narrow it to this action or family (again for more; default: *)",
    )
    expiry = create.add_mutually_exclusive_group()
    expiry.add_argument("--for", dest="duration", metavar="TIME", help="how long, such as 90d")
    expiry.add_argument("--until", metavar="TIME", help="until when")
    add_zone_argument(create)
    create.add_argument("--out", metavar="FILE", help="write the secret to this new file")
    create.add_argument("--key", help="idempotency key: the same one never creates a second token")
    add_server_arguments(create)


def run(args: argparse.Namespace) -> int:
    """Do what the verb says; 0, or the server's refusal."""
    with connect(args) as client, naming(_FLAGS):
        if args.verb == "list":
            return _list(args, client)
        if args.verb in {"create", "rotate"}:
            return _issue(args, client)
        if args.verb == "show":
            token = client.get_token(args.id)
        elif is_confirmed(args, f"Revoke the token {args.id}: nothing is done with it any more?"):
            token = client.revoke_token(args.id)
        else:
            return 1
        return print_view(args, token, _facts(token))


def _list(args: argparse.Namespace, client: "Client") -> int:
    def row(token: "TokenView") -> Sequence[object]:
        return (
            token.name,
            token.role,
            token.state,
            ", ".join(token.actions),
            short_time(token.expires_at),
            short_time(token.last_used_at),
            token.id,
        )

    headers = ("name", "role", "state", "actions", "until", "last used", "id")
    fetch = partial(client.list_tokens, state=args.state, role=args.role)
    return print_list(args, fetch, headers, row, empty=_EMPTY)


def _issue(args: argparse.Namespace, client: "Client") -> int:
    """Create or rotate; the file is opened first, since what cannot be written then is lost."""
    with ExitStack() as stack:
        keep = None
        if args.out is not None:
            place = secret_file(Path(args.out), replace=args.verb == "rotate")
            keep = stack.enter_context(place)
        if args.verb == "create":
            issued = client.create_token(_body(args))
        else:
            body = None if args.overlap is None else {"overlap": args.overlap}
            issued = client.rotate_token(args.id, body)
        if keep is not None:
            keep(issued.token)
    return print_issued(args, issued, issued.token, _facts(issued.record), _following(args, issued))


def _body(args: argparse.Namespace) -> dict[str, Any]:
    body: dict[str, Any] = {"name": args.name, "role": args.role, "idempotency_key": args.key}
    if args.action is not None:
        body["actions"] = args.action
    if args.duration is not None:
        body["expires_in"] = args.duration
    if args.until is not None:
        body["expires_at"] = format_instant(read_time(args.until, field="--until"))
    return body


def _following(args: argparse.Namespace, issued: "TokenIssued") -> list[str]:
    if args.out is None:
        return next_lines(
            f"apportion token rotate {issued.record.id} --out FILE    (if it was seen by others)"
        )
    return next_lines(f"apportion caller show --token-file {args.out}")


def _facts(token: "TokenView") -> list[str]:
    facts = {
        "id": token.id,
        "tenant": token.tenant_id,
        "role": token.role,
        "actions": ", ".join(token.actions),
        "state": token.state,
        "created": f"{both_zones(token.created_at)} by {token.created_by}",
        "until": None if token.expires_at is None else both_zones(token.expires_at),
        "revoked": None if token.revoked_at is None else both_zones(token.revoked_at),
        "last used": "never" if token.last_used_at is None else both_zones(token.last_used_at),
    }
    return fact_lines(token.name, facts)
