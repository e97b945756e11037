"""`apportion pool offer`, `unoffer` and `offers`: other tenants' view of a pool."""

import argparse
from functools import partial
from typing import TYPE_CHECKING, Final

from apportion.cli.confirming import add_yes_argument, is_confirmed
from apportion.cli.connection import add_server_arguments, find_own_pool, naming
from apportion.cli.listing import add_list_arguments, print_list
from apportion.cli.pool_text import OFFER_HEADERS, offer_lines, offer_row
from apportion.cli.pool_words import add_quota_argument, read_quota
from apportion.cli.showing import next_lines, print_view
from apportion.errors import InvalidInputError

if TYPE_CHECKING:
    from apportion.client import Client

_FLAGS: Final = {
    "pool_id": "POOL",
    "tenant_id": "TENANT",
    "quota": "--quota",
    "priority": "--priority",
    "include_descendants": "--include-descendants",
}


def add_offer_arguments(offer: argparse.ArgumentParser) -> None:
    """Add to whom, how much and how."""
    _add_both(offer)
    add_quota_argument(offer)
    offer.add_argument("--priority", default="0", metavar="N", help="-1000 to 1000 (default: 0)")
    offer.add_argument(
        "--include-descendants",
        action="store_true",
        help="tenants below it use the pool too, on its quota",
    )
    add_server_arguments(offer)


def add_unoffer_arguments(unoffer: argparse.ArgumentParser) -> None:
    """Add whose offer is withdrawn."""
    _add_both(unoffer)
    add_yes_argument(unoffer)
    add_server_arguments(unoffer)


def add_offers_arguments(offers: argparse.ArgumentParser) -> None:
    """Add whose offers are listed."""
    offers.add_argument("pool", metavar="POOL", help="its name or id")
    add_list_arguments(offers)
    add_server_arguments(offers)


def _add_both(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pool", metavar="POOL", help="its name or id")
    parser.add_argument("to", metavar="TENANT", help="the tenant's id")


def offer(args: argparse.Namespace, client: "Client") -> int:
    """Offer a pool; offering again changes priority, descendants and the limits that are named."""
    body = {
        "quota": dict(read_quota(text, field="--quota") for text in args.quota),
        "priority": _priority(args.priority),
        "include_descendants": args.include_descendants,
    }
    pool = find_own_pool(client, args.pool, field="POOL")
    with naming(_FLAGS):
        made = client.offer_pool(pool.id, args.to, body)
    following = next_lines(
        f"apportion pool show {pool.name} --tenant {args.to}",
        f"apportion quota set {pool.name} RESOURCE LIMIT --of {args.to}",
    )
    return print_view(args, made, [*offer_lines(pool, made), *following])


def _priority(text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 9):  # noqa: PLR2004 - far beyond the range
        raise InvalidInputError(
            "is no whole number", field="--priority", given=text[:60], allowed="-1000 to 1000"
        )
    return int(text)


def unoffer(args: argparse.Namespace, client: "Client") -> int:
    """Withdraw an offer; whether there was one is said, and is no error."""
    pool = find_own_pool(client, args.pool, field="POOL")
    question = (
        f"Withdraw the offer of {pool.name} to {args.to}: what runs runs on, what waits fails?"
    )
    if not is_confirmed(args, question):
        return 1
    with naming(_FLAGS):
        done = client.unoffer_pool(pool.id, args.to)
    said = "is no longer offered" if done.removed else "was not offered"
    return print_view(args, done, [f"{pool.name} {said} to {args.to}"])


def offers(args: argparse.Namespace, client: "Client") -> int:
    """List whom a pool is offered to."""
    pool = find_own_pool(client, args.pool, field="POOL")
    empty = f"No offers. Make one: apportion pool offer {pool.name} TENANT --quota gpu=8"
    with naming(_FLAGS):
        fetch = partial(client.list_offers, pool.id)
        return print_list(args, fetch, OFFER_HEADERS, offer_row, empty=empty)
