"""`apportion tenant`: the tree of tenants below root."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from apportion.cli.confirming import add_yes_argument, is_confirmed
from apportion.cli.connection import add_server_arguments, connect, naming
from apportion.cli.listing import LIMIT_MAX, add_list_arguments, print_list
from apportion.cli.showing import fact_lines, next_lines, print_view
from apportion.cli.times import both_zones, short_time
from apportion.errors import InvalidInputError

if TYPE_CHECKING:
    from apportion.client import Client
    from apportion.tenants.schemas import TenantView

_EMPTY = "No such tenants. Create one: apportion tenant create ID"
_FLAGS: Final = {"id": "ID", "tenant_id": "ID", "name": "--name", "parent_id": "--parent"}
_BRANCHES: Final = ("├── ", "└── ", "│   ", "    ")
_ASCII_BRANCHES: Final = ("|-- ", "`-- ", "|   ", "    ")
_EXAMPLES: Final = """\
examples:
  apportion tenant create acme --name 'Acme Inc.'
  apportion tenant create acme-research --parent acme
  apportion tenant list --tree
  apportion tenant show acme
  apportion tenant rename acme 'Acme Holding'
  apportion tenant delete acme-research --yes"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `create`, `list`, `show`, `rename` and `delete`."""
    parser.epilog = _EXAMPLES
    verbs = parser.add_subparsers(
        dest="verb", required=True, metavar="create|list|show|rename|delete"
    )
    create = verbs.add_parser("create", help="create a tenant", epilog=_EXAMPLES)
    create.add_argument("id", metavar="ID", help="lower-case letters, digits and -; for good")
    create.add_argument("--name", metavar="TEXT", help="for people (default: the id)")
    create.add_argument("--parent", metavar="ID", help="the tenant above (default: one's own)")
    add_server_arguments(create)
    listing = verbs.add_parser("list", help="list tenants", epilog=_EXAMPLES)
    listing.add_argument("--parent", metavar="ID", help="only those right below this one")
    listing.add_argument("--deleted", action="store_true", help="deleted ones too")
    listing.add_argument("--tree", action="store_true", help="draw all of them as a tree")
    add_list_arguments(listing)
    add_server_arguments(listing)
    show = verbs.add_parser("show", help="show a tenant", epilog=_EXAMPLES)
    rename = verbs.add_parser("rename", help="give it another name", epilog=_EXAMPLES)
    delete = verbs.add_parser(
        "delete",
        help="delete it: archive its pools, withdraw offers to it, end its reservations",
        epilog=_EXAMPLES,
    )
    for verb in (show, rename, delete):
        verb.add_argument("id", metavar="ID", help="its id")
        add_server_arguments(verb)
    rename.add_argument("name", metavar="NAME", help="the new name, for people")
    add_yes_argument(delete)


def run(args: argparse.Namespace) -> int:
    """Do what the verb says; 0, or the server's refusal."""
    flags = {**_FLAGS, "name": "NAME"} if args.verb == "rename" else _FLAGS
    with connect(args) as client, naming(flags):
        if args.verb == "list":
            return _tree(args, client) if args.tree else _list(args, client)
        if args.verb == "delete":
            return _delete(args, client)
        if args.verb == "create":
            name = args.id if args.name is None else args.name
            body = {"id": args.id, "name": name, "parent_id": args.parent}
            tenant = client.create_tenant(body)
            following = next_lines(
                f"apportion token create NAME --role owner --tenant {tenant.id} --out FILE",
                f"apportion pool offer POOL {tenant.id} --quota gpu=8",
            )
            return print_view(args, tenant, [*_facts(tenant), *following])
        if args.verb == "rename":
            tenant = client.update_tenant(args.id, {"name": args.name})
        else:
            tenant = client.get_tenant(args.id)
        return print_view(args, tenant, _facts(tenant))


def _list(args: argparse.Namespace, client: "Client") -> int:
    fetch = partial(
        client.list_tenants, parent_id=args.parent, include_deleted=args.deleted or None
    )

    def row(tenant: "TenantView") -> Sequence[object]:
        facts = (tenant.id, tenant.name, tenant.parent_id, short_time(tenant.created_at))
        return (*facts, short_time(tenant.deleted_at)) if args.deleted else facts

    headers = ("id", "name", "below", "created", *(["deleted"] if args.deleted else []))
    return print_list(args, fetch, headers, row, empty=_EMPTY)


def _tree(args: argparse.Namespace, client: "Client") -> int:
    """Draw every tenant; a page of a tree has no meaning, and programs have the list."""
    given = [
        flag
        for flag, value in (
            ("--parent", args.parent),
            ("--limit", args.limit),
            ("--cursor", args.cursor),
            ("--output", None if args.output == "table" else args.output),
        )
        if value is not None
    ]
    if given:
        raise InvalidInputError(
            "has no meaning together with --tree", field=given[0], allowed="the whole tree"
        )
    found = client.list_tenants(include_deleted=args.deleted or None, limit=LIMIT_MAX).all()
    lines = tree_lines(list(found), boxes=_can_draw())
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def tree_lines(tenants: "Sequence[TenantView]", *, boxes: bool) -> list[str]:
    """Draw tenants as a tree; one whose parent is not among them stands at the left."""
    children: dict[str | None, list[TenantView]] = {}
    ids = {tenant.id for tenant in tenants}
    for tenant in sorted(tenants, key=lambda each: each.id):
        parent = tenant.parent_id if tenant.parent_id in ids else None
        children.setdefault(parent, []).append(tenant)
    branches = _BRANCHES if boxes else _ASCII_BRANCHES

    def below(parent: str, indent: str) -> "Iterator[tuple[str, TenantView]]":
        rows = children.get(parent, [])
        for tenant in rows:
            last = tenant is rows[-1]
            yield indent + branches[1 if last else 0], tenant
            yield from below(tenant.id, indent + branches[3 if last else 2])

    drawn: list[tuple[str, TenantView]] = []
    for top in children.get(None, []):
        drawn += [("", top), *below(top.id, "")]
    width = max((len(indent) + len(tenant.id) for indent, tenant in drawn), default=0)
    return [
        f"{indent + tenant.id:<{width}}  {tenant.name}"
        + ("" if tenant.deleted_at is None else " (deleted)")
        for indent, tenant in drawn
    ]


def _can_draw() -> bool:
    try:
        "".join(_BRANCHES).encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _delete(args: argparse.Namespace, client: "Client") -> int:
    question = (
        f"Delete the tenant {args.id}: archive its pools, withdraw offers to it, end its "
        "reservations and revoke its tokens, for good?"
    )
    if not is_confirmed(args, question):
        return 1
    done = client.delete_tenant(args.id)
    facts = {
        "archived pools": ", ".join(done.archived_pools) or "none",
        "withdrawn offers": ", ".join(done.withdrawn_offers) or "none",
        "ended reservations": done.ended_reservations,
        "revoked tokens": done.revoked_tokens,
    }
    return print_view(args, done, fact_lines(f"{done.tenant.id} is deleted", facts))


def _facts(tenant: "TenantView") -> list[str]:
    facts = {
        "id": tenant.id,
        "place": " > ".join(tenant.ancestors),
        "created": both_zones(tenant.created_at),
        "deleted": None if tenant.deleted_at is None else both_zones(tenant.deleted_at),
    }
    return fact_lines(tenant.name, facts)
