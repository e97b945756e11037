"""`apportion doctor`: whether the server is well, and what keeps GPUs from working."""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal

from apportion.cli.connection import add_server_arguments, connect
from apportion.cli.output import print_data, table
from apportion.cli.times import short_time
from apportion.errors import ApportionError

if TYPE_CHECKING:
    from apportion.client import Client

Result = Literal["ok", "note", "wrong"]

_PAGE = 1000
_STUCK_AFTER = timedelta(hours=24)
_NAMED_MAX = 5
# Of a change under way, and of nodes that are told of by themselves.
_TOLD_OF_NODES = (
    *("partitionPending", "node_stale"),
    *("spec_not_converged", "acceptance_pending", "acceptance_failed"),
)
_EXAMPLES = """\
ok is as it should be, a note is worth knowing, wrong needs somebody.

examples:
  apportion doctor
  apportion doctor -o json

exit codes: 0 nothing is wrong; 1 something is"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check: what came of it, in a sentence, and what to do where something is to do."""

    check: str
    result: Result
    text: str
    hint: str | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.epilog = _EXAMPLES
    add_server_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Check one after the other: 0, or 1 where something is wrong."""
    findings: list[Finding] = []
    with connect(args) as client:
        for check in _CHECKS:
            findings += check(client)
            if findings[-1].check in _STOPPERS and findings[-1].result == "wrong":
                break  # the others could only say the same once more
    if args.output != "table":
        print_data({"findings": [_data(each) for each in findings]}, args.output)
    else:
        rows = [(each.check, each.result, each.text) for each in findings]
        hints = [f"  {each.check}: {each.hint}" for each in findings if each.hint is not None]
        lines = [table(("check", "result", "finding"), rows), *(["", "To do:"] if hints else [])]
        sys.stdout.write("\n".join([*lines, *hints]) + "\n")
    return 1 if any(each.result == "wrong" for each in findings) else 0


def _server(client: "Client") -> Iterator[Finding]:
    yield _asked("server", client.get_health, f"answers at {client.url}")


def _database(client: "Client") -> Iterator[Finding]:
    yield _asked("ready", client.get_readiness, "started, and its database answers")


def _token(client: "Client") -> Iterator[Finding]:
    yield _asked("token", lambda: client.list_sites(limit=1), "is known")


def _nodes(client: "Client") -> Iterator[Finding]:
    """Report nodes that give less than they have, or nothing."""
    total = 0
    ill: dict[str, list[str]] = {}
    stale: list[str] = []
    stale_gpus = 0
    held_up: dict[str, list[str]] = {}
    for node in client.list_nodes(limit=_PAGE).all():
        total += 1
        if node.stale_since is not None:
            stale.append(f"{node.name} (since {short_time(node.stale_since)})")
            stale_gpus += node.gpus
        elif node.reason is not None:
            held_up.setdefault(str(node.reason["code"]), []).append(node.name)
        if node.health != "healthy":
            ill.setdefault(node.health, []).append(f"{node.name} ({node.health_reason})")
    if not total:
        yield _no_nodes(client)
    elif not ill:
        yield Finding(check="nodes", result="ok", text=f"all {total:,} are healthy")
    for health, names in ill.items():
        yield Finding(
            check="nodes",
            result="wrong",
            text=f"{len(names):,} of {total:,} are {health}: {_some(names)}",
            hint=f"See `apportion node list --health {health}`",
        )

    if stale:
        yield Finding(
            check="nodes.stale",
            result="wrong",
            text=f"{len(stale):,} of {total:,} with {stale_gpus:,} GPUs are not heard of:"
            f" {_some(stale)}",
            hint="Nothing new is booked on them. Are their agents running? `apportion node list"
            " --stale`",
        )
    for code, names in held_up.items():
        yield Finding(
            check="nodes.new",
            result="wrong" if code == "acceptance_failed" else "note",
            text=f"{len(names):,} of {total:,} take no work yet, {code}: {_some(names)}",
            hint="See `apportion node show NODE`",
        )


def _no_nodes(client: "Client") -> Finding:
    """Say that there are none; who only uses what others offer has none and needs none."""
    offered = client.list_pools(owned=False, limit=1).items
    if offered and not client.list_pools(owned=True, limit=1).items:
        return Finding(check="nodes", result="ok", text="those that it uses are others' to look at")
    hint = "Import some: `apportion node import POOL FILE`"
    return Finding(check="nodes", result="note", text="there are none", hint=hint)


def _hosts(client: "Client") -> Iterator[Finding]:
    """Report nodes whose host is otherwise than their pool asks, by the unit's reason."""
    hosts: dict[str, list[str]] = {}
    own: list[str] = []
    for node in client.list_nodes(limit=_PAGE).all():
        if node.own_layout is not None:
            own.append(f"{node.name} ({node.own_layout})")
        for outcome in node.outcomes.values():
            if outcome.get("mismatches"):
                hosts.setdefault(str(outcome["reason"]), []).append(node.name)
    for reason, names in hosts.items():
        yield Finding(
            check="nodes.host",
            result="wrong",
            text=f"{len(names):,} are not as their pool asks, {reason}: {_some(names)}",
            hint="See `apportion node show NODE`: what is compared alone, somebody has to set up",
        )
    if own:
        text = (
            f"{len(own):,} have a MIG layout of their own, whatever is asked of them: {_some(own)}"
        )
        yield Finding(check="nodes.layout", result="note", text=text)


def _overruns(client: "Client") -> Iterator[Finding]:
    """Report nodes with devices that past holders have not let go of."""
    nodes = client.list_nodes(limit=_PAGE).all()
    kept = [f"{node.name} ({node.not_given_back:,})" for node in nodes if node.not_given_back]
    if kept:
        yield Finding(
            check="nodes.overrun",
            result="wrong",
            text=f"{len(kept):,} nodes have devices that are not given back: {_some(kept)}",
            hint="See `apportion event list --type reservation.overrun`: end what is left there",
        )


def _gpus(client: "Client") -> Iterator[Finding]:
    """Count GPUs that cannot be booked, by reason; a change under way is none to worry about."""
    total = 0
    reasons: Counter[str] = Counter()
    for gpu in client.list_gpus(limit=_PAGE).all():
        total += 1
        if gpu.unbookable_reason is not None:
            reasons[gpu.unbookable_reason] += 1
    if total and not reasons:
        yield Finding(check="gpus", result="ok", text=f"all {total:,} can be booked")
    for reason, count in reasons.items():
        yield Finding(
            check="gpus",
            result="note" if reason in _TOLD_OF_NODES else "wrong",
            text=f"{count:,} of {total:,} cannot be booked: {reason}",
            hint="See `apportion atom list --unbookable`",
        )


def _pending(client: "Client") -> Iterator[Finding]:
    """Count what waits, by reason: to wait is no fault, to wait without a reason would be."""
    reasons: Counter[str] = Counter()
    for view in client.list_reservations(states=["pending"], limit=_PAGE).all():
        reasons[str(view.reason.get("code") or "")] += 1
    if not reasons:
        yield Finding(check="pending", result="ok", text="nothing waits")
    for reason, count in reasons.most_common():
        yield Finding(
            check="pending",
            result="note" if reason else "wrong",
            text=f"{count:,} wait: {reason or 'without a reason'}",
        )


def _layouts(client: "Client") -> Iterator[Finding]:
    """Report nodes that were granted another cut long ago and have not said that they have it."""
    now = datetime.now(UTC)
    stuck: dict[str, list[str]] = {}
    changing = 0
    for pool in client.list_pools(owned=True, limit=_PAGE).all():
        for node in client.list_layouts(pool.id, state="granted", limit=_PAGE).all():
            changing += 1
            if now - node.since > _STUCK_AFTER:
                stuck.setdefault(pool.name, []).append(node.name)
    for pool_name, names in stuck.items():
        yield Finding(
            check="capacity.mig.stuck",
            result="wrong",
            text=f"{len(names):,} nodes of {pool_name} were granted another cut more than a day "
            f"ago and have not reported it: {_some(names)}",
            hint=f"See `apportion layout status {pool_name}`: is the agent there well?",
        )
    if not stuck:
        words = (
            f"{changing:,} nodes are being cut anew" if changing else "no node is being cut anew"
        )
        yield Finding(check="layouts", result="note" if changing else "ok", text=words)


def _devices(client: "Client") -> Iterator[Finding]:
    """Report what has begun without its device: its node should have it, and does not show it."""
    missing: Counter[str] = Counter()
    names: list[str] = []
    for view in client.list_reservations(states=["placed", "active"], limit=_PAGE).all():
        for booking in view.bookings:
            if booking.allocation is not None and booking.allocation.state == "missing":
                missing[booking.allocation.reason["code"]] += 1
                names.append(booking.allocation.id)
    if not names:
        yield Finding(check="devices", result="ok", text="nothing has begun without its device")
        return
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in missing.most_common())
    yield Finding(
        check="capacity.device.missing",
        result="wrong",
        text=f"{len(names):,} are not there, which should be ({reasons}): {_some(names)}",
        hint="See `apportion reservation show`: is the agent on its node well?",
    )


_CHECKS: Final = (
    _server,
    _database,
    _token,
    _nodes,
    _hosts,
    _overruns,
    _gpus,
    _layouts,
    _devices,
    _pending,
)
_STOPPERS: Final = frozenset({"server", "ready", "token"})


def _asked(check: str, ask: Callable[[], object], good: str) -> Finding:
    try:
        ask()
    except ApportionError as error:
        return Finding(check=check, result="wrong", text=error.message, hint=error.hint)
    return Finding(check=check, result="ok", text=good)


def _some(names: list[str]) -> str:
    more = len(names) - _NAMED_MAX
    return ", ".join(names[:_NAMED_MAX]) + (f" and {more:,} more" if more > 0 else "")


def _data(finding: Finding) -> dict[str, object]:
    return {
        "check": finding.check,
        "result": finding.result,
        "text": finding.text,
        "hint": finding.hint,
    }
