"""`apportion site`: the places that pools live in."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from apportion.cli.confirming import add_yes_argument, is_confirmed
from apportion.cli.connection import add_server_arguments, connect, naming
from apportion.cli.finding import is_id, the_one
from apportion.cli.listing import LIMIT_MAX, add_list_arguments, print_list
from apportion.cli.showing import fact_lines, next_lines, print_view
from apportion.cli.times import both_zones
from apportion.errors import InvalidInputError

if TYPE_CHECKING:
    from apportion.client import Client
    from apportion.pools.schemas import SiteView

KINDS: Final = ("shared", "dedicated", "custom")

_EMPTY = "No sites. Create one: apportion site create NAME --region REGION"
_FLAGS: Final = {
    "name": "NAME",
    "region": "--region",
    "kind": "--kind",
    "idempotency_key": "--key",
    "site_id": "SITE",
}
_EXAMPLES: Final = """\
The root tenant's sites are shared or dedicated, every other tenant's custom.

examples:
  apportion site create fra1 --region eu-central
  apportion site create basement --region eu-central --tenant acme
  apportion site list
  apportion site show fra1
  apportion site update fra1 --region eu-central-1
  apportion site delete basement --tenant acme --yes"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `create`, `list`, `show`, `update` and `delete`."""
    parser.epilog = _EXAMPLES
    verbs = parser.add_subparsers(
        dest="verb", required=True, metavar="create|list|show|update|delete"
    )
    create = verbs.add_parser("create", help="create a site", epilog=_EXAMPLES)
    create.add_argument("name", metavar="NAME", help="lower-case letters, digits, - and .")
    create.add_argument("--region", required=True, metavar="NAME", help="what policies see of it")
    create.add_argument(
        "--kind", choices=KINDS, help="default: shared of root, custom of every other tenant"
    )
    create.add_argument("--key", help="idempotency key: the same one never creates a second site")
    add_server_arguments(create)
    listing = verbs.add_parser("list", help="list one's own sites", epilog=_EXAMPLES)
    add_list_arguments(listing)
    add_server_arguments(listing)
    show = verbs.add_parser("show", help="show a site", epilog=_EXAMPLES)
    update = verbs.add_parser("update", help="change its name or region", epilog=_EXAMPLES)
    delete = verbs.add_parser("delete", help="delete it; no pool may be in it", epilog=_EXAMPLES)
    for verb in (show, update, delete):
        verb.add_argument("site", metavar="SITE", help="its name or id")
        add_server_arguments(verb)
    update.add_argument("--name", metavar="NAME", help="the new name")
    update.add_argument("--region", metavar="NAME", help="the new region")
    add_yes_argument(delete)


def run(args: argparse.Namespace) -> int:
    """Do what the verb says; 0, or the server's refusal."""
    flags = {**_FLAGS, "name": "--name"} if args.verb == "update" else _FLAGS
    with connect(args) as client, naming(flags):
        if args.verb == "list":
            headers = ("name", "region", "kind", "tenant", "id")
            return print_list(args, client.list_sites, headers, _row, empty=_EMPTY)
        if args.verb == "create":
            site = client.create_site(
                {
                    "name": args.name,
                    "region": args.region,
                    "kind": args.kind,
                    "idempotency_key": args.key,
                }
            )
            following = next_lines(
                f"apportion pool create NAME --gpu-model H100 --site {site.name}"
            )
            return print_view(args, site, [*_facts(site), *following])
        site = find_site(client, args.site, field="SITE")
        if args.verb == "delete":
            if not is_confirmed(args, f"Delete the site {site.name}?"):
                return 1
            return print_view(args, client.delete_site(site.id), [f"{site.name} is deleted"])
        if args.verb == "update":
            site = _update(args, client, site)
        return print_view(args, site, _facts(site))


def find_site(client: "Client", text: str, *, field: str) -> "SiteView":
    """Return the site of that id or name; NotFoundError when there is none."""
    if is_id(text):
        with naming({"site_id": field}):
            return client.get_site(text)
    found = client.list_sites(limit=LIMIT_MAX).all()
    return the_one(found, text, field=field, what="site")


def _update(args: argparse.Namespace, client: "Client", site: "SiteView") -> "SiteView":
    if args.name is None and args.region is None:
        raise InvalidInputError(
            "says nothing to change", field="--region", allowed="--name, --region, or both"
        )
    return client.update_site(site.id, {"name": args.name, "region": args.region})


def _row(site: "SiteView") -> Sequence[object]:
    return site.name, site.region, site.kind, site.tenant_id, site.id


def _facts(site: "SiteView") -> list[str]:
    facts = {
        "id": site.id,
        "region": site.region,
        "kind": site.kind,
        "tenant": site.tenant_id,
        "created": both_zones(site.created_at),
    }
    return fact_lines(site.name, facts)
