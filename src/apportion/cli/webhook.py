"""`apportion webhook`: where events are sent, and those that could not be."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from apportion.cli.arguments import whole_number
from apportion.cli.confirming import add_yes_argument, is_confirmed
from apportion.cli.connection import add_server_arguments, connect, naming
from apportion.cli.finding import is_id, the_one
from apportion.cli.listing import LIMIT_MAX, add_list_arguments, print_list
from apportion.cli.secret_file import print_issued, secret_file
from apportion.cli.showing import fact_lines, next_lines, print_view
from apportion.cli.times import both_zones, short_time
from apportion.errors import InvalidInputError

if TYPE_CHECKING:
    from apportion.client import Client
    from apportion.webhooks.schemas import DeliveryView, WebhookView

STATES: Final = ("pending", "dead")

_EMPTY = "No webhooks. Create one: apportion webhook create NAME --to https://…"
_NO_DELIVERIES = "Nothing waits and nothing is dead: all that happened was delivered."
_FLAGS: Final = {
    "name": "NAME",
    "url": "--to",
    "types": "--type",
    "enabled": "--enable",
    "version": "--version",
    "idempotency_key": "--key",
    "webhook_id": "WEBHOOK",
    "delivery_id": "DELIVERY",
    "state": "--state",
}
_EXAMPLES: Final = """\
The signing secret is shown once, or written to a file that only its owner can read.

examples:
  apportion webhook create billing --to https://billing.example/hook --type pool. --out hook.secret
  apportion webhook list
  apportion webhook show billing
  apportion webhook update billing --type pool. --type quota. --enable
  apportion webhook deliveries billing --state dead
  apportion webhook resend billing dlv_01k...
  apportion webhook rotate billing --out hook.secret
  apportion webhook delete billing --yes"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verbs of a webhook's life."""
    parser.epilog = _EXAMPLES
    metavar = "create|list|show|update|delete|rotate|deliveries|resend"
    verbs = parser.add_subparsers(dest="verb", required=True, metavar=metavar)
    create = verbs.add_parser("create", help="send events to an address", epilog=_EXAMPLES)
    create.add_argument("name", metavar="NAME", help="lower-case letters, digits, - and .")
    create.add_argument("--to", required=True, metavar="URL", help="where events are posted")
    _add_types(create)
    create.add_argument("--disabled", action="store_true", help="send nothing yet")
    create.add_argument("--out", metavar="FILE", help="write the secret to this new file")
    create.add_argument("--key", help="idempotency key: the same one never makes a second webhook")
    add_server_arguments(create)
    listing = verbs.add_parser("list", help="list webhooks", epilog=_EXAMPLES)
    add_list_arguments(listing)
    add_server_arguments(listing)
    texts = {
        "show": "show one and how it does",
        "update": "change where or what it sends",
        "delete": "send nothing there any more",
        "rotate": "give it a new secret",
        "deliveries": "list events that wait for it, and dead ones",
        "resend": "try a dead one again",
    }
    named = {
        verb: verbs.add_parser(verb, help=text, epilog=_EXAMPLES) for verb, text in texts.items()
    }
    for parser_of_verb in named.values():
        parser_of_verb.add_argument("webhook", metavar="WEBHOOK", help="its name or id")
        add_server_arguments(parser_of_verb)
    _add_update(named["update"])
    add_yes_argument(named["delete"])
    named["rotate"].add_argument(
        "--out", metavar="FILE", help="write the secret here, in place of the old"
    )
    named["deliveries"].add_argument("--state", choices=STATES, help="only in this state")
    add_list_arguments(named["deliveries"])
    named["resend"].add_argument("delivery", metavar="DELIVERY", help="the delivery's id")


def _add_types(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--type",
        action="append",
        metavar="START",
        help="only events whose type begins so: pool. (again for more; default: all)",
    )


def _add_update(update: argparse.ArgumentParser) -> None:
    update.add_argument("--to", metavar="URL", help="where events are posted")
    _add_types(update)
    update.add_argument("--all-types", action="store_true", help="send all events")
    state = update.add_mutually_exclusive_group()
    state.add_argument("--enable", action="store_const", const=True, dest="enabled", help="send")
    state.add_argument(
        "--disable", action="store_const", const=False, dest="enabled", help="send nothing for now"
    )
    update.add_argument(
        "--version", type=whole_number, metavar="N", help="refuse if it is another one by now"
    )


def run(args: argparse.Namespace) -> int:
    """Do what the verb says; 0, or the server's refusal."""
    with connect(args) as client, naming(_FLAGS):
        if args.verb == "list":
            headers = ("name", "url", "types", "enabled", "waiting", "dead", "id")
            return print_list(args, client.list_webhooks, headers, _row, empty=_EMPTY)
        if args.verb == "create":
            return _issue(args, client, None)
        return _DO[args.verb](args, client, _find(client, args.webhook))


def _find(client: "Client", text: str) -> "WebhookView":
    if is_id(text):
        return client.get_webhook(text)
    found = client.list_webhooks(limit=LIMIT_MAX).all()
    return the_one(found, text, field="WEBHOOK", what="webhook")


def _issue(args: argparse.Namespace, client: "Client", webhook: "WebhookView | None") -> int:
    """Create, or rotate; the file is opened first, since what cannot be written then is lost."""
    with ExitStack() as stack:
        keep = None
        if args.out is not None:
            place = secret_file(Path(args.out), replace=webhook is not None)
            keep = stack.enter_context(place)
        if webhook is not None:
            issued = client.rotate_webhook_secret(webhook.id)
        else:
            body: dict[str, Any] = {
                "name": args.name,
                "url": args.to,
                "types": args.type or [],
                "enabled": not args.disabled,
                "idempotency_key": args.key,
            }
            issued = client.create_webhook(body)
        if keep is not None:
            keep(issued.secret)
    following = next_lines(f"apportion webhook deliveries {issued.webhook.name}")
    return print_issued(args, issued, issued.secret, _facts(issued.webhook), following)


def _show(args: argparse.Namespace, _client: "Client", webhook: "WebhookView") -> int:
    return print_view(args, webhook, _facts(webhook))


def _update(args: argparse.Namespace, client: "Client", webhook: "WebhookView") -> int:
    changed = client.update_webhook(webhook.id, _changed(args, webhook))
    return print_view(args, changed, _facts(changed))


def _delete(args: argparse.Namespace, client: "Client", webhook: "WebhookView") -> int:
    if not is_confirmed(args, f"Delete the webhook {webhook.name} and what waits for it?"):
        return 1
    done = client.delete_webhook(webhook.id)
    return print_view(args, done, [f"{webhook.name} is deleted"])


def _resend(args: argparse.Namespace, client: "Client", webhook: "WebhookView") -> int:
    sent = client.resend_delivery(webhook.id, args.delivery)
    return print_view(args, sent, _delivery_lines(sent))


def _changed(args: argparse.Namespace, webhook: "WebhookView") -> dict[str, Any]:
    if args.all_types and args.type is not None:
        raise InvalidInputError("contradicts --all-types", field="--type", allowed="one of them")
    types: list[str] | None = [] if args.all_types else args.type
    if types is None and args.to is None and args.enabled is None:
        raise InvalidInputError(
            "says nothing to change",
            field="--to",
            allowed="--to, --type, --all-types, --enable or --disable",
        )
    return {
        "version": webhook.version if args.version is None else args.version,
        "url": args.to,
        "types": types,
        "enabled": args.enabled,
    }


def _deliveries(args: argparse.Namespace, client: "Client", webhook: "WebhookView") -> int:
    def row(delivery: "DeliveryView") -> Sequence[object]:
        return (
            delivery.event.type,
            delivery.event.subject,
            delivery.state,
            delivery.attempts,
            short_time(delivery.next_at) if delivery.state == "pending" else None,
            _last(delivery),
            delivery.id,
        )

    headers = ("event", "subject", "state", "tries", "next", "last answer", "id")
    fetch = partial(client.list_deliveries, webhook.id, state=args.state)
    return print_list(args, fetch, headers, row, empty=_NO_DELIVERIES)


def _row(webhook: "WebhookView") -> Sequence[object]:
    return (
        webhook.name,
        webhook.url,
        ", ".join(webhook.types) or "all",
        "yes" if webhook.enabled else "no",
        webhook.pending,
        webhook.dead,
        webhook.id,
    )


def _facts(webhook: "WebhookView") -> list[str]:
    facts = {
        "id": webhook.id,
        "to": webhook.url,
        "types": ", ".join(webhook.types) or "all",
        "enabled": "yes" if webhook.enabled else "no",
        "waiting": webhook.pending,
        "dead": webhook.dead,
        "version": webhook.version,
        "changed": both_zones(webhook.updated_at),
    }
    return fact_lines(webhook.name, facts)


def _delivery_lines(delivery: "DeliveryView") -> list[str]:
    facts = {
        "state": delivery.state,
        "tries": delivery.attempts,
        "next": both_zones(delivery.next_at),
        "last answer": _last(delivery),
    }
    return fact_lines(f"{delivery.event.type} {delivery.event.subject}", facts)


def _last(delivery: "DeliveryView") -> str | None:
    told = [str(each) for each in (delivery.last_status, delivery.last_error) if each is not None]
    return " ".join(told) or None


_DO: Final[Mapping[str, Callable[[argparse.Namespace, "Client", "WebhookView"], int]]] = {
    "show": _show,
    "update": _update,
    "delete": _delete,
    "rotate": _issue,
    "deliveries": _deliveries,
    "resend": _resend,
}
