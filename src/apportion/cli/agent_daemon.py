"""`apportion agent join` and `agent run`: the daemon of a GPU node, and how its machine joins."""

import argparse
import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from apportion.cli.connection import naming
from apportion.cli.documents import read_text
from apportion.cli.output import add_output_argument
from apportion.cli.showing import fact_lines, next_lines, print_view
from apportion.errors import InvalidInputError

STATE_VARIABLE: Final = "APPORTION_AGENT_STATE"
STATE: Final = "/var/lib/apportion-agent"
CDI_VARIABLE: Final = "APPORTION_CDI_DIR"
CDI_DIR: Final = "/var/run/cdi"
CONFIG_VARIABLE: Final = "APPORTION_AGENT_CONFIG"
CONFIG: Final = "/etc/apportion/agent.yaml"

VERBS: Final = ("join", "run")


def add_verbs(add: Callable[..., argparse.ArgumentParser], epilog: str) -> None:
    """Add `join` and `run`, by ``add_parser``."""
    join = add("join", help="let this machine join a pool", epilog=epilog)
    join.add_argument("--server", required=True, metavar="URL", help="where the server is")
    secret = join.add_mutually_exclusive_group(required=True)
    secret.add_argument("--token", metavar="TOKEN", help="the join token")
    secret.add_argument("--token-file", metavar="FILE", help="a file with it; - for standard input")
    _add_machine(join)
    add_output_argument(join)
    daemon = add("run", help="report, converge and hand out, for ever", epilog=epilog)
    _add_machine(daemon)
    daemon.add_argument(
        "--cdi-dir",
        metavar="DIR",
        type=Path,
        default=Path(os.environ.get(CDI_VARIABLE) or CDI_DIR),
        help=f"where container runtimes look for CDI specs ({CDI_VARIABLE}; default: {CDI_DIR})",
    )
    daemon.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        default=os.environ.get(CONFIG_VARIABLE) or None,
        help=f"what the node itself says, YAML ({CONFIG_VARIABLE}; default: {CONFIG}, if there)",
    )
    daemon.add_argument("--once", action="store_true", help="go round once, and say how it went")


def add_state_argument(parser: argparse.ArgumentParser, what: str) -> None:
    """Add `--state`, the directory in which an agent keeps what it has to remember."""
    parser.add_argument(
        "--state",
        metavar="DIR",
        type=Path,
        default=Path(os.environ.get(STATE_VARIABLE) or STATE),
        help=f"{what} ({STATE_VARIABLE}; default: {STATE})",
    )


def _add_machine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--node", metavar="NAME", help="the node's name (default: the host's)")
    add_state_argument(parser, "where the node keeps its key and its reports")
    parser.add_argument(
        "--inventory",
        metavar="FILE",
        type=Path,
        help="a document that something else writes, in place of what the driver says",
    )


def run(args: argparse.Namespace) -> int:
    """Do what the verb says; 0, or the server's refusal."""
    return _join(args) if args.verb == "join" else _run(args)


def _join(args: argparse.Namespace) -> int:
    from apportion.agent.joining import join
    from apportion.agent.machine import Places, machine

    if args.token is not None:
        token = args.token
    else:
        token = read_text(args.token_file, field="--token-file").strip()
    if not token.startswith("apj_"):
        raise InvalidInputError(
            "is no join token", field="--token", allowed="one word that begins with apj_"
        )
    with (
        naming({"inventory": "--inventory", "state": "--state", "url": "--server"}),
        machine(
            Places(state=args.state, cdi_dir=Path(CDI_DIR)), args.node, args.inventory, _now
        ) as this,
    ):
        identity = join(
            args.state,
            args.server,
            token,
            this.observe(),
            now=_now,
            entropy=secrets.token_bytes,
        )
    facts = {
        "server": identity.url,
        "pool": identity.pool_id,
        "class": identity.cls,
        "server's key": identity.server_key,
        "state": str(args.state),
    }
    following = next_lines(f"apportion agent run --state {args.state}")
    lines = [*fact_lines(f"this machine is {identity.node_id}", facts), *following]
    return print_view(args, identity, lines)


def _run(args: argparse.Namespace) -> int:
    from apportion.agent.alone import alone
    from apportion.agent.identity import link_of
    from apportion.agent.loop import Loop
    from apportion.agent.machine import Places, machine
    from apportion.agent.own_layout import read_config
    from apportion.agent.uplink import Uplink
    from apportion.server.logs import configure_logging

    configure_logging()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: stop.set())
    with (
        naming({"state": "--state", "config": "--config"}),
        alone(args.state),
        closing(link_of(args.state, now=_now, entropy=secrets.token_bytes)) as link,
        machine(
            Places(state=args.state, cdi_dir=args.cdi_dir),
            args.node,
            args.inventory,
            _now,
            read_config(args.config or Path(CONFIG), needed=args.config is not None),
        ) as this,
    ):
        uplink = Uplink(args.state, link)
        loop = Loop(args.state, link, uplink, this, _now)
        if not args.once:
            loop.run(stop.wait)
            return 0
        loop.round()
    generation = "nothing yet" if loop.spec is None else f"generation {loop.spec.generation}"
    sys.stdout.write(f"asked for {generation}; {uplink.waiting} reports wait to be sent\n")
    return 0 if loop.spec is not None and not uplink.waiting else 1


def _now() -> datetime:
    return datetime.now(UTC)
