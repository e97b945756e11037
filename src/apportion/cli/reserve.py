"""`apportion reserve`: plan an ask against a pool, reserve it, and show what came of it."""

import argparse
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from apportion.cli.arguments import add_ask_limits, whole_number
from apportion.cli.asking import Plan, ask_of_flags, device_request, plan_in_pools
from apportion.cli.connection import (
    add_address_arguments,
    add_server_arguments,
    connect,
    find_pool,
    naming,
)
from apportion.cli.listing import LIMIT_MAX, data_of
from apportion.cli.output import print_data
from apportion.cli.plan import choice_data, choice_lines
from apportion.cli.reservation_text import LIVE, TOGETHER, reservation_lines
from apportion.cli.selecting import GRAMMAR, parse_selector
from apportion.cli.series import print_series
from apportion.cli.showing import next_lines
from apportion.cli.times import TIME_GRAMMAR
from apportion.cli.when import (
    SERIES_FLAGS,
    add_window_arguments,
    asked_recurrence,
    asked_window,
    start_flag,
)
from apportion.errors import InvalidInputError
from apportion.planning.asks import FractionalAsk

if TYPE_CHECKING:
    from apportion.client import Client
    from apportion.reservations.schemas import ReservationView

FORMS: Final = ("mig", "fraction", "memory", "slots", "gpus")
"""The forms of an ask, each a flag."""

POLICIES: Final = ("first", "best", "spread", "fragmentation")

_ANY: Final = "one of " + ", ".join(f"--{form}" for form in FORMS)
_FLAGS: Final = {
    "name": "--name",
    "pool_id": "--pool",
    "pool_ids": "--pool",
    "duration": "--for",
    "start": "--from",
    "end": "--until",
    "end_before": "--before",
    "open_ended": "--open-ended",
    "resources.vcpu": "--vcpu",
    "resources.memoryGiB": "--host-memory-gib",
    "devices[0].selector": "--select",
    "placement.policy": "--policy",
    "placement.together": "--together",
    "placement.apart": "--apart",
    "gang.members": "--gang",
    "gang.apart": "--gang-apart",
    "placement.movable": "--movable",
    "idempotency_key": "--key",
}
_SELECTOR = GRAMMAR.replace(": ", ":\n  ").replace(", key>", ",\n  key>")
_EXAMPLES = f"""\
A part of a GPU is met by the pool's own way to share: the smallest MIG profile with that much,
slots, free shares, or a whole GPU, and what that wastes is said. All pieces lie on one node;
only a gang lies on several, each of its members on one.

Times are {TIME_GRAMMAR}.
A selector is {_SELECTOR}.

examples:
  apportion reserve --pool notebooks --mig 3g.40gb --for 4h --vcpu 8 --host-memory-gib 64
  apportion reserve --pool batch-a,batch-b --fraction 0.25 --for 90m --name sweep-7
  apportion reserve --pool notebooks --memory 20Gi --from 2026-12-01T09:00 --until 2026-12-01T17:00
  apportion reserve --pool training --gpus 4 --for 2d --together nvlink
  apportion reserve --pool training --gpus 1 --for 2d --select 'numaNode=0' --policy spread
  apportion reserve --pool notebooks --gpus 1 --for 2h --before 2026-12-01T18:00
  apportion reserve --pool notebooks --gpus 1 --open-ended
  apportion reserve --pool training --gpus 8 --for 2d --gang 4 --vcpu 96
  apportion reserve --pool notebooks --gpus 1 --every weekday --from 09:00 --to 17:00 \\
    --zone Europe/Berlin --until 2026-12-31
  apportion reserve --pool batch-a --vcpu 16 --for 1h

exit codes: 0 placed; 1 pending (the reason is printed, and it is tried again) or refused;
2 bad input"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.epilog = _EXAMPLES
    add_request_arguments(parser, recurring=True)
    parser.add_argument("--name", help="what it is for")
    parser.add_argument("--key", help="idempotency key: the same one never reserves twice")


def add_request_arguments(
    parser: argparse.ArgumentParser, *, recurring: bool, here: bool = False
) -> None:
    """Add what every ask is made of: pools, pieces, a window, host resources, a place.

    ``here``: it is to lie on this machine, whose own pool need not be named, and is not printed.
    """
    default = " (default: this machine's)" if here else ""
    parser.add_argument(
        "--pool",
        required=not here,
        metavar="POOL[,POOL]",
        help=f"by name or id; of several, the tightest fit is taken{default}",
    )
    _add_ask(parser)
    add_ask_limits(parser)
    add_window_arguments(parser, recurring=recurring)
    host = parser.add_argument_group("host resources, on the same node or alone")
    host.add_argument("--vcpu", metavar="N", help="virtual CPUs: 8, 0.5, 250m")
    host.add_argument("--host-memory-gib", metavar="N", help="host memory in GiB: 64, 0.5")
    _add_place(parser)
    if here:
        add_address_arguments(parser)
    else:
        add_server_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Plan, reserve, print: 0 when placed, 1 when it waits or is refused."""
    with connect(args) as client:
        body, plan = asked(args, client)
        if args.every is not None:
            return _run_series(args, client, body)
        with naming(request_flags(args)):
            view = client.create_reservation({**body, "idempotency_key": args.key})
        _print(args, client, view, plan)
    return 1 if view.state in ("pending", "failed") else 0


def _run_series(args: argparse.Namespace, client: "Client", body: Mapping[str, object]) -> int:
    with naming({**request_flags(args), **SERIES_FLAGS}):
        series = client.create_series({**body, "idempotency_key": args.key})
        view = client.get_series(series.id, limit=LIMIT_MAX)
    print_series(args, client, view)
    return 0


def asked(args: argparse.Namespace, client: "Client") -> tuple[Mapping[str, object], Plan | None]:
    """Read the flags as the body of a request, and how its pieces are met if any were asked for."""
    ask = _ask(args)
    window = asked_window(args) if args.every is None else {"recurrence": asked_recurrence(args)}
    gang = _gang(args)
    selector = () if args.select is None else parse_selector(args.select, field="--select")
    pools = [find_pool(client, text, field="--pool") for text in _names(args.pool)]
    plan = None if ask is None else plan_in_pools(client, ask, pools, field=_flag(args))
    devices = []
    if plan is not None:
        devices = [device_request(plan, count=args.count or 1, selector=selector)]
    body = {
        "name": args.name,
        "pool_ids": [pool.id for pool in pools],
        "devices": devices,
        "resources": {"vcpu": args.vcpu or 0, "memoryGiB": args.host_memory_gib or 0},
        "placement": _placement(args),
        "gang": gang,
        **window,
    }
    return body, plan


def request_flags(args: argparse.Namespace) -> Mapping[str, str]:
    """Return by which flags the fields of a request came in."""
    return {**_FLAGS, "start": start_flag(args), **_ask_flags(args)}


def _add_ask(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the ask (one of them; without any, host resources alone)")
    form = group.add_mutually_exclusive_group()
    form.add_argument("--mig", metavar="PROFILE", help="a MIG profile: 3g.40gb, 1g.10gb+me")
    form.add_argument("--fraction", metavar="F", help="a part of a GPU's compute: 0.25, 1/7, 500m")
    form.add_argument("--memory", metavar="SIZE", help="an amount of GPU memory: 20Gi, 20GB")
    form.add_argument("--slots", type=whole_number, metavar="N", help="slots of one GPU")
    form.add_argument("--gpus", type=whole_number, metavar="N", help="whole GPUs")
    group.add_argument(
        "--count", type=whole_number, metavar="N", help="so many pieces of it (not with --gpus)"
    )


def _add_place(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the place")
    group.add_argument("--select", metavar="SELECTOR", help="only GPUs that match, see below")
    group.add_argument(
        "--policy", choices=POLICIES, help="which free place is taken (default: the pool's policy)"
    )
    group.add_argument(
        "--together",
        choices=tuple(TOGETHER),
        default="node",
        help="all pieces on one GPU, or on GPUs of one NUMA node or NVLink domain "
        "(default: node, as always)",
    )
    group.add_argument("--apart", action="store_true", help="every piece on a GPU of its own")
    group.add_argument(
        "--gang",
        type=whole_number,
        metavar="MEMBERS",
        help="so many times all of that, on any nodes: every member is placed, or none is",
    )
    group.add_argument(
        "--gang-apart", action="store_true", help="every member of the gang on a node of its own"
    )
    group.add_argument(
        "--movable", action="store_true", help="it may be moved while it runs, by notice"
    )


def _placement(args: argparse.Namespace) -> Mapping[str, object]:
    policy = {} if args.policy is None else {"policy": args.policy}
    movable = {"movable": True} if args.movable else {}
    return {**policy, **movable, "together": args.together, "apart": args.apart}


def _gang(args: argparse.Namespace) -> Mapping[str, object] | None:
    if args.gang is not None:
        return {"members": args.gang, "apart": args.gang_apart}
    if args.gang_apart:
        raise InvalidInputError("means something only beside --gang", field="--gang-apart")
    return None


def _ask(args: argparse.Namespace) -> FractionalAsk | None:
    """Read the ask; None where host resources alone are asked for."""
    if _flag(args):
        if args.count is not None and (args.gpus is not None or args.count < 1):
            raise InvalidInputError(
                "is no number of pieces" if args.gpus is None else "counts parts, not whole GPUs",
                field="--count",
                given=args.count,
                allowed="1 or more" if args.gpus is None else "--gpus alone",
            )
        return ask_of_flags(
            "reservation" if args.name is None else args.name,
            {form: getattr(args, form) for form in FORMS},
            isolation=args.isolation,
            allow_larger=args.allow_larger,
        )
    stray = {
        "--count": args.count is not None,
        "--isolation": args.isolation is not None,
        "--allow-larger": args.allow_larger,
        "--select": args.select is not None,
    }
    for flag, given in stray.items():
        if given:
            raise InvalidInputError("means something only beside an ask", field=flag, allowed=_ANY)
    if args.vcpu is None and args.host_memory_gib is None:
        raise InvalidInputError(
            "nothing is asked for", allowed=f"{_ANY}, --vcpu, --host-memory-gib"
        )
    return None


def _flag(args: argparse.Namespace) -> str:
    """Return the flag that the ask came by; empty where there is none."""
    return next((f"--{form}" for form in FORMS if getattr(args, form) is not None), "")


def _ask_flags(args: argparse.Namespace) -> Mapping[str, str]:
    return {
        "devices": _flag(args) or "--vcpu",
        "devices[0].count": "--count" if args.gpus is None else "--gpus",
    }


def _names(text: str) -> list[str]:
    names = text.split(",")
    if "" in names:
        raise InvalidInputError(
            "has an empty name", field="--pool", given=text, allowed="POOL, or POOL,POOL"
        )
    return names


def _print(
    args: argparse.Namespace, client: "Client", view: "ReservationView", plan: Plan | None
) -> None:
    if args.output != "table":
        choice = None if plan is None else choice_data(plan.choice)
        print_data({**data_of(view), "plan": choice}, args.output)
        return
    lines: list[str] = []
    if plan is not None:
        count = f"{args.count} pieces, each" if (args.count or 1) > 1 else "plan"
        lines += [*choice_lines(count, plan.choice, plan.remark), ""]
    lines += reservation_lines(client, view, datetime.now(UTC))
    lines += next_lines(*_next(view))
    sys.stdout.write("\n".join(lines) + "\n")


def _next(view: "ReservationView") -> Iterator[str]:
    """Give what its owner may want to type now."""
    if view.state == "pending":
        yield f"apportion reservation explain {view.id}"
        yield f"apportion reservation wait {view.id}"
    else:
        yield f"apportion reservation show {view.id}"
    if view.state in ("pending", *LIVE):
        yield f"apportion reservation release {view.id}"
