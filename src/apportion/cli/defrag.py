"""`apportion defrag`: the fewest reservations that lie elsewhere, so that others fit."""

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from apportion.cli.confirming import add_yes_argument, is_confirmed
from apportion.cli.connection import add_server_arguments, connect, find_own_pool, naming
from apportion.cli.listing import data_of
from apportion.cli.output import print_data
from apportion.cli.pictures import picture
from apportion.cli.pool_text import largest_text
from apportion.cli.times import both_zones
from apportion.cli.unheard import unheard

if TYPE_CHECKING:
    from apportion.client import Client
    from apportion.nodes.schemas import GpuView
    from apportion.pools.schemas import PoolView
    from apportion.reservations.schemas import Defragmented, MoveOut

_FLAGS: Final = {
    "pool_id": "POOL",
    "reservations": "--reservation",
    "free_gpus": "--free-gpus",
    "notice": "--notice",
    "time_limit": "--time-limit",
}
_WHO: Final = {"from": "was here", "to": "is here"}
_EXAMPLES = """\
examples:
  apportion defrag notebooks
  apportion defrag notebooks --reservation res_01k... --apply
  apportion defrag notebooks --free-gpus --notice 30m --apply --yes -o json

A reservation can be moved while it has not begun; one that runs only where it was asked for with
--movable in a pool whose policy sets preemptible. That one ends after the notice, and goes on
elsewhere as another reservation.

exit codes: 0 all fit (or GPUs are freed), 1 not all of it or nothing, 2 bad input"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the pool, and what is to be gained."""
    parser.epilog = _EXAMPLES
    parser.add_argument("pool", metavar="POOL", help="its name or id")
    parser.add_argument(
        "--reservation",
        action="append",
        metavar="ID",
        help="one that waits and is to fit (again for more; default: the first in line)",
    )
    parser.add_argument(
        "--free-gpus", action="store_true", help="free as many whole GPUs as can be, instead"
    )
    parser.add_argument(
        "--notice", default="5m", metavar="DURATION", help="for those that run (default: 5m)"
    )
    parser.add_argument(
        "--time-limit",
        default="10s",
        metavar="DURATION",
        help="search so long at most, up to 60s (default: 10s)",
    )
    parser.add_argument("--apply", action="store_true", help="make the moves, all or none")
    add_yes_argument(parser)
    add_server_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Plan, show it, and make the moves where that is asked for."""
    with connect(args) as client:
        pool = find_own_pool(client, args.pool, field="POOL")
        body = {
            "reservations": args.reservation,
            "free_gpus": args.free_gpus,
            "notice": args.notice,
            "time_limit": args.time_limit,
        }
        if args.apply and not _is_wanted(args, client, pool, body):
            return 1
        with naming(_FLAGS):
            found = client.defragment_pool(pool.id, {**body, "apply": args.apply})
        if args.output != "table":
            print_data(data_of(found), args.output)
        else:
            _print(found, pool, client)
    gained = found.freed_gpus if args.free_gpus else len(found.fits)
    return 0 if gained and not found.does_not_fit else 1


def _is_wanted(
    args: argparse.Namespace, client: "Client", pool: "PoolView", body: dict[str, object]
) -> bool:
    """Show what would be done, and ask."""
    if args.yes:
        return True
    with naming(_FLAGS):
        found = client.defragment_pool(pool.id, body)
    _print(found, pool, client)
    return bool(found.moves) and is_confirmed(args, f"Make these {len(found.moves)} moves?")


def _print(found: "Defragmented", pool: "PoolView", client: "Client") -> None:
    lines = [*summary_lines(found, pool)]
    touched = {place.gpu_id for move in found.moves for place in (*move.from_, *move.to)}
    listed = client.list_gpus(pool_id=pool.id, limit=1000).all() if touched else ()
    gpus = {gpu.id: gpu for gpu in listed if gpu.id in touched}
    for move in found.moves:
        lines += ["", *_move_lines(move, gpus)]
    sys.stdout.write("\n".join(lines) + "\n")


def summary_lines(found: "Defragmented", pool: "PoolView") -> Iterator[str]:
    """Say what is moved, and what is gained by it."""
    done = "made" if found.applied else "would do"
    sure = "none needs fewer" if found.optimal else f"at least {found.bound} are needed"
    if not found.moves:
        looked = f"{found.nodes_looked_at} of {found.nodes} nodes looked at"
        yield f"{pool.name}: no moves make more room ({looked})"
    else:
        yield f"{pool.name}: {len(found.moves)} moves {done} ({sure})"
    if found.stale is not None:
        who = unheard(found.stale.nodes, found.stale.gpus, found.stale.since)
        yield f"  not heard of, and nothing moves there: {who}"
    if found.freed_gpus:
        yield f"  {found.freed_gpus} whole GPUs are free then"
    yield from _largest_lines(found)
    yield from (f"  {each} fits then" for each in found.fits)
    yield from (f"  {each} does not fit" for each in found.does_not_fit)
    if found.moves and not found.applied:
        yield f"next: apportion defrag {pool.name} --apply"


def _largest_lines(found: "Defragmented") -> Iterator[str]:
    """Say what all that is free by then can serve: a sum alone promises too much."""
    now = {each.class_: largest_text(each) for each in found.largest_now}
    if found.largest_then:
        yield f"  largest requests with room for good from {both_zones(found.largest_from)} on:"
    for each in found.largest_then:
        then, before = largest_text(each), now[each.class_]
        yield f"    {each.class_}: {then} ({'as now' if then == before else f'now {before}'})"


def _move_lines(move: "MoveOut", gpus: "dict[str, GpuView]") -> Iterator[str]:
    how = "before it begins" if move.how == "rebook" else f"by notice, at {both_zones(move.at)}"
    yield f"{move.reservation_id} of {move.tenant_id} moves {how}"
    if move.successor_id is not None:
        yield f"  it goes on as {move.successor_id}"
    for word, places in (("from", move.from_), ("to", move.to)):
        for place in places:
            yield f"  {word:4} {place.node} {place.gpu_id}" + (
                "" if place.atom is None else f" {place.atom.rpartition('/')[2]}"
            )
            gpu = gpus.get(place.gpu_id)
            if gpu is not None and gpu.ruler > 1:
                drawn = picture(gpu, (), {place.units: _WHO[word]}, free="others or free")
                yield from (f"       {line}" for line in drawn)
