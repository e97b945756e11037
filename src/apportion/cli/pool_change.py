"""`apportion pool update` and `pool archive`: what changes of a pool, and its end."""

import argparse
from typing import TYPE_CHECKING, Any, Final

from apportion.cli.arguments import whole_number
from apportion.cli.confirming import add_yes_argument, is_confirmed
from apportion.cli.connection import add_server_arguments, find_own_pool, naming
from apportion.cli.pool_policy import edited, read_policy_argument, tell_unknown
from apportion.cli.pool_text import pool_lines
from apportion.cli.showing import print_view
from apportion.errors import ConflictError, InvalidInputError

if TYPE_CHECKING:
    from apportion.client import Client
    from apportion.pools.schemas import PoolView

_FLAGS: Final = {"gpu_model": "--gpu-model", "version": "--version"}


def add_update_arguments(update: argparse.ArgumentParser) -> None:
    """Add which pool, and what changes."""
    update.add_argument("pool", metavar="POOL", help="its name or id")
    add_change_arguments(update)
    add_server_arguments(update)


def add_change_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what can be changed of a pool."""
    parser.add_argument("--gpu-model", metavar="MODEL", help="such as H100")
    parser.add_argument(
        "--policy", metavar="FILE|JSON", help="the whole policy, a JSON object, - for stdin"
    )
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set this field of the current policy; a.b is b within a (again for more)",
    )
    parser.add_argument(
        "--unset",
        action="append",
        default=[],
        metavar="KEY",
        help="take this field out of the current policy (again for more)",
    )
    parser.add_argument(
        "--version",
        type=whole_number,
        metavar="N",
        help="refuse if the pool is at another one by now (default: as just read)",
    )


def add_archive_arguments(archive: argparse.ArgumentParser) -> None:
    """Add which pool is retired."""
    archive.add_argument("pool", metavar="POOL", help="its name or id")
    add_yes_argument(archive)
    add_server_arguments(archive)


def change_of(args: argparse.Namespace, pool: "PoolView") -> dict[str, Any]:
    """Return the body of an update: the policy whole, since the server replaces it whole."""
    edits = bool(args.settings or args.unset)
    if args.policy is None and not edits and args.gpu_model is None:
        raise InvalidInputError(
            "says nothing to change",
            field="--policy",
            allowed="--policy, --set, --unset or --gpu-model",
        )
    policy = None
    if args.policy is not None:
        policy = read_policy_argument(args.policy, field="--policy")
    if edits:
        policy = edited(pool.policy if policy is None else policy, args.settings, args.unset)
    return {
        "version": pool.version if args.version is None else args.version,
        "policy": policy,
        "gpu_model": args.gpu_model,
    }


def policy_flag(args: argparse.Namespace) -> str:
    """Return by which flag a policy came in, or was edited last."""
    return "--set" if args.settings else "--unset" if args.unset else "--policy"


def update(args: argparse.Namespace, client: "Client") -> int:
    """Change a pool as it was just read; somebody else's change in between is a refusal."""
    before = find_own_pool(client, args.pool, field="POOL")
    try:
        with naming({**_FLAGS, "policy": policy_flag(args)}):
            pool = client.update_pool(before.id, change_of(args, before))
    except ConflictError as error:
        error.hint = error.hint or f"Look at it again: apportion pool show {before.name}"
        raise
    if args.settings or args.policy is not None:
        tell_unknown(pool.policy)
    lines = pool_lines(pool)
    if pool.version == before.version:
        lines += ["", "Nothing had to be changed."]
    return print_view(args, pool, lines)


def archive(args: argparse.Namespace, client: "Client") -> int:
    """Retire a pool: what runs there runs on, nothing new is taken."""
    pool = find_own_pool(client, args.pool, field="POOL")
    question = (
        f"Archive {pool.name}: withdraw all its offers, take no new work and fail what waits, "
        "for good?"
    )
    if not is_confirmed(args, question):
        return 1
    archived = client.archive_pool(pool.id)
    return print_view(args, archived, pool_lines(archived))
