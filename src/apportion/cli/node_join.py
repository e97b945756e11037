"""`apportion node join-token` and `node revoke`: which machines may join, and which no more."""

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from apportion.cli.confirming import add_yes_argument, is_confirmed
from apportion.cli.connection import (
    PoolNames,
    add_server_arguments,
    find_own_pool,
    find_pool,
    naming,
)
from apportion.cli.listing import add_list_arguments, print_list
from apportion.cli.secret_file import print_issued, secret_file
from apportion.cli.showing import fact_lines, next_lines, print_view
from apportion.cli.times import both_zones, short_time

if TYPE_CHECKING:
    from apportion.client import Client
    from apportion.nodes.schemas import JoinTokenView, NodeView

STATES: Final = ("open", "used", "revoked", "expired")

_EMPTY: Final = "No such join tokens. Create one: apportion node join-token create POOL"
_FLAGS: Final = {
    "name": "--name",
    "class": "--class",
    "expires_in": "--for",
    "idempotency_key": "--key",
    "join_token_id": "ID",
    "pool_id": "POOL",
    "state": "--state",
}


def add_verbs(add: Callable[..., argparse.ArgumentParser], epilog: str) -> None:
    """Add `join-token` and `revoke`, by ``add_parser``."""
    tokens = add("join-token", help="let machines join by themselves", epilog=epilog)
    verbs = tokens.add_subparsers(dest="token_verb", required=True, metavar="create|list|revoke")
    create = verbs.add_parser("create", help="let one machine join a pool, once", epilog=epilog)
    create.add_argument("pool", metavar="POOL", help="the pool's name or id")
    create.add_argument("--name", default="machine", help="what it is for (default: machine)")
    create.add_argument("--class", dest="cls", metavar="CLASS", help="the pool's, to be sure of it")
    create.add_argument(
        "--for", dest="duration", metavar="TIME", default="1h", help="how long (default: 1h)"
    )
    create.add_argument("--out", metavar="FILE", help="write the secret to this new file")
    create.add_argument("--key", help="idempotency key: the same one never creates a second token")
    add_server_arguments(create)
    listing = verbs.add_parser("list", help="list them, without secrets", epilog=epilog)
    listing.add_argument("--pool", metavar="POOL", help="only of this pool, by name or id")
    listing.add_argument("--state", choices=STATES, help="only in this state")
    add_list_arguments(listing)
    add_server_arguments(listing)
    end = verbs.add_parser("revoke", help="let it let nobody in any more", epilog=epilog)
    end.add_argument("id", metavar="ID", help="its id")
    add_yes_argument(end)
    add_server_arguments(end)
    revoke = add("revoke", help="refuse a node until it joins anew", epilog=epilog)
    revoke.add_argument("node", metavar="NODE", help="its name or id")
    revoke.add_argument("--pool", metavar="POOL", help="where several pools have such a name")
    add_yes_argument(revoke)
    add_server_arguments(revoke)


def run_join_token(args: argparse.Namespace, client: "Client") -> int:
    """Do what the verb says; 0, or the server's refusal."""
    with naming(_FLAGS):
        if args.token_verb == "list":  # noqa: S105 - a verb
            return _list(args, client)
        if args.token_verb == "create":  # noqa: S105 - a verb
            return _create(args, client)
        if not is_confirmed(args, f"Revoke {args.id}: no machine joins with it any more?"):
            return 1
        token = client.revoke_join_token(args.id)
        return print_view(args, token, _facts(token))


def revoke(args: argparse.Namespace, client: "Client", node: "NodeView") -> int:
    """Revoke a node's key, where that is confirmed."""
    question = f"Revoke {node.name}: what it signs is refused until it joins anew?"
    if not is_confirmed(args, question):
        return 1
    after = client.revoke_node(node.id)
    lines = [f"{after.name} is refused from now on; what is booked on it stays", ""]
    pool = PoolNames(client).name(after.pool_id)
    return print_view(
        args, after, [*lines, *next_lines(f"apportion node join-token create {pool}")]
    )


def _list(args: argparse.Namespace, client: "Client") -> int:
    pool = None if args.pool is None else find_pool(client, args.pool, field="--pool")
    pools = PoolNames(client)

    def row(token: "JoinTokenView") -> Sequence[object]:
        return (
            token.name,
            pools.name(token.pool_id),
            token.state,
            short_time(token.expires_at),
            token.node_id,
            token.id,
        )

    headers = ("name", "pool", "state", "until", "let in", "id")
    pool_id = None if pool is None else pool.id
    fetch = partial(client.list_join_tokens, pool_id=pool_id, state=args.state)
    return print_list(args, fetch, headers, row, empty=_EMPTY)


def _create(args: argparse.Namespace, client: "Client") -> int:
    """Create one; the file is opened first, since what cannot be written then is lost."""
    pool = find_own_pool(client, args.pool, field="POOL")
    body = {
        "name": args.name,
        "class": args.cls,
        "expires_in": args.duration,
        "idempotency_key": args.key,
    }
    with ExitStack() as stack:
        keep = None
        if args.out is not None:
            keep = stack.enter_context(secret_file(Path(args.out), replace=False))
        issued = client.create_join_token(pool.id, body)
        if keep is not None:
            keep(issued.token)
    source = "--token TOKEN" if args.out is None else f"--token-file {args.out}"
    following = next_lines(f"apportion agent join --server {client.url} {source}    (on the node)")
    return print_issued(args, issued, issued.token, _facts(issued.record), following)


def _facts(token: "JoinTokenView") -> list[str]:
    facts = {
        "id": token.id,
        "pool": token.pool_id,
        "class": token.class_,
        "state": token.state,
        "created": f"{both_zones(token.created_at)} by {token.created_by}",
        "until": both_zones(token.expires_at),
        "let in": token.node_id,
        "revoked": None if token.revoked_at is None else both_zones(token.revoked_at),
    }
    return fact_lines(token.name, facts)
