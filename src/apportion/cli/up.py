"""``apportion up``: the server with its own database, and a real fleet in it."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from apportion.cli import simulating
from apportion.cli.arguments import whole_number
from apportion.cli.draw import Cell, can_draw_boxes, draw_gpu
from apportion.cli.output import table, wants_colour
from apportion.errors import InvalidInputError
from apportion.quantities.shares import decimal_text

if TYPE_CHECKING:
    from apportion.demo.job import Progress, Work
    from apportion.demo.summary import Summary
    from apportion.server.system import System


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``up``."""
    parser.add_argument("--state", type=Path, metavar="DIR", help="where everything is kept")
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument(
        "--port",
        type=whole_number,
        metavar="PORT",
        help="port to listen on, 0 for any (default 7070)",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings in TOML")
    parser.add_argument(
        "--simulate",
        metavar="MACHINE",
        help="simulated nodes with agents in place of the demo: dgx-h100, a100x8, a30x4, h200x8,"
        " b200x8, l4x2, mixed",
    )
    parser.add_argument(
        "--nodes", type=whole_number, metavar="N", help="how many simulated nodes (default 1)"
    )
    parser.add_argument("--no-demo", action="store_true", help="an empty server")
    parser.add_argument("--once", action="store_true", help="do the main job, print it, and stop")
    parser.epilog = (
        "examples:\n"
        "  apportion up                        a fleet to look at, kept for the next time\n"
        "  apportion up --no-demo --port 8080  an empty server\n"
        "  apportion up --simulate dgx-h100    a server and a node with 8 simulated GPUs\n"
    )


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted; 0 when it stopped cleanly."""
    import uvloop

    from apportion.server.launch import up
    from apportion.server.logs import configure_logging
    from apportion.server.settings import load_settings

    kinds = _simulated(args)
    settings = load_settings(
        {"state": args.state, "host": args.host, "port": args.port}, config=args.config
    )
    configure_logging(settings.log_level, settings.log_format)

    async def started(system: "System", url: str) -> None:
        if kinds:
            await simulating.run(url, system.token_file, settings.state, kinds, once=args.once)
            return
        if not args.no_demo:
            await _demo(system)
        _say(_next_steps(url, system.token_file, demo=not args.no_demo))

    uvloop.run(
        up(
            settings.state,
            host=settings.host,
            port=settings.port,
            database_url=settings.database_url,
            key_file=settings.key_file,
            pool_size=settings.pool_size,
            webhook_networks=settings.webhook_networks,
            clock_skew=timedelta(seconds=settings.node_clock_skew_seconds),
            started=started,
            once=args.once,
        )
    )
    return 0


def _simulated(args: argparse.Namespace) -> Sequence[str]:
    """Return the kinds of the nodes to simulate, none where none are asked for."""
    if args.simulate is None:
        if args.nodes is not None:
            raise InvalidInputError(
                "simulated nodes need to know of what machine", field="--simulate"
            )
        return ()
    if args.nodes == 0:
        raise InvalidInputError("is out of range", field="--nodes", given=0, allowed="1 or more")
    from apportion.simulated.fleet import kinds_of

    return kinds_of(args.simulate, args.nodes or 1)


async def _demo(system: "System") -> None:
    from apportion.authority.service import ROOT, Caller
    from apportion.demo import job
    from apportion.demo.summary import summarize

    caller = Caller(ROOT, "demo")
    work = await job.run(system.runtime, system.reservations, caller, _Bar().show)
    _say(_report(await summarize(system.runtime, system.reservations, caller), work))


class _Bar:
    """One line of progress that rewrites itself on a terminal, and is a line a stage elsewhere."""

    def __init__(self) -> None:
        self._stage = ""

    def show(self, progress: "Progress") -> None:
        text = f"{progress.stage}: {progress.done:,} of {progress.total:,}"
        finished = progress.done == progress.total
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{text}" + ("\n" if finished else ""))
        elif progress.stage != self._stage or finished:
            sys.stderr.write(text + "\n")
        self._stage = progress.stage
        sys.stderr.flush()


def _report(summary: "Summary", work: "Work") -> str:
    lines = [_pools(summary), "", _tasks(summary, work), ""]
    if summary.waiting:
        lines += ["Not placed, waiting for room:", _waiting(summary.waiting), ""]
    colour, boxes = wants_colour(), can_draw_boxes()
    for picture in summary.pictures:
        cells = [Cell(label=label, mask=mask) for label, mask in picture.cells]
        lines.append(picture.title)
        lines += draw_gpu(picture.units, cells, colour=colour, boxes=boxes)
    return "\n".join(lines)


def _pools(summary: "Summary") -> str:
    rows: list[Sequence[object]] = [
        (
            pool.name,
            pool.gpu_model,
            pool.sharing,
            pool.nodes,
            pool.gpus,
            decimal_text(pool.allocated, 2),
            _percent(pool.allocated, pool.gpus),
            pool.live,
        )
        for pool in summary.pools
    ]
    gpus = sum(pool.gpus for pool in summary.pools)
    allocated = sum((pool.allocated for pool in summary.pools), Fraction(0))
    nodes = sum(pool.nodes for pool in summary.pools)
    live = sum(pool.live for pool in summary.pools)
    total = (
        "all",
        "",
        "",
        nodes,
        gpus,
        decimal_text(allocated, 2),
        _percent(allocated, gpus),
        live,
    )
    headers = ("pool", "model", "sharing", "nodes", "GPUs", "allocated", "%", "reservations")
    stale = sum(pool.stale_gpus for pool in summary.pools)
    told = f"\n{stale:,} of {gpus:,} GPUs are on nodes that nobody hears of" if stale else ""
    return table(headers, [*rows, total]) + told


def _percent(part: Fraction, whole: int) -> str:
    return decimal_text(100 * part / whole, 1) if whole else "-"


def _tasks(summary: "Summary", work: "Work") -> str:
    if not work.decided:
        return "Kept from an earlier run; nothing was placed anew."
    waiting = sum(summary.waiting.values())
    rate = round(work.decided / work.seconds)
    return (
        f"{work.decided:,} tasks of a public production trace decided in {work.seconds:.1f} s"
        f" ({rate:,} a second, every one durable); {waiting:,} found no room."
    )


def _waiting(waiting: Mapping[str, int]) -> str:
    rows = sorted(waiting.items(), key=lambda item: -item[1])
    return table(("reason", "reservations"), rows)


def _next_steps(url: str, token_file: Path, *, demo: bool) -> str:
    near = os.path.relpath(token_file)
    here = not near.startswith("..")
    shown, where = (near, ", in this folder") if here else (token_file.resolve(), "")
    steps = [
        "",
        f"Apportion answers at {url} (Ctrl-C stops it). In another terminal{where}:",
        "",
        f"  export APPORTION_URL={url} APPORTION_TOKEN_FILE={shown}",
        "  apportion pool list",
    ]
    if demo:
        steps += [
            "  apportion reserve --pool h100-mig --mig 1g.10gb --for 2h",
            "  apportion reservation list --state pending --limit 5",
            "  apportion usage",
        ]
    return "\n".join(steps)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
