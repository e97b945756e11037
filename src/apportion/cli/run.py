"""`apportion run`: reserve, wait, run a command on what was reserved, and give it back."""

import argparse
import os
import shutil
import signal
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import PurePath
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from apportion.cli.connection import PoolNames, connect, find_pool, naming
from apportion.cli.device_environment import MISSING, VISIBLE, environment_of
from apportion.cli.lease import Lease
from apportion.cli.reservation_text import head
from apportion.cli.reserve import FORMS, add_request_arguments, asked, request_flags
from apportion.cli.signals import Signals, StoppedError, is_told_by_terminal
from apportion.cli.this_node import pools_here, this_node
from apportion.cli.times import NO_END, both_zones
from apportion.cli.waiting import Wait, is_reached, tell
from apportion.errors import ApportionError, InvalidInputError, InvalidStateError, UnavailableError
from apportion.quantities.windows import parse_duration

if TYPE_CHECKING:
    from apportion.client import Client
    from apportion.reservations.schemas import ReservationView

_KILLED_AFTER: Final = timedelta(seconds=30)
_AGAIN: Final = timedelta(seconds=2)
_GIVEN_UP_AFTER: Final = timedelta(seconds=60)
_NO_SUCH_COMMAND: Final = 127
_EXAMPLES = """\
The command runs on this machine, which has to be a node of the pool; the reservation is made on
it. While the command runs the reservation is kept longer, by --for each time, as long as nobody
else has the time; where it cannot be, the command is told to end (SIGTERM) when its time is up.
At the end, whatever ended it, the reservation is given back. What is told goes to stderr.

examples:
  apportion run --mig 3g.40gb --for 2h -- python train.py
  apportion run --pool training --gpus 2 --for 1d --vcpu 16 -- torchrun train.py --epochs 9
  apportion run --fraction 0.25 --for 30m --isolation hardware -- ./sweep.sh

exit codes: the command's own (128 + N where signal N ended it); 1 it got no GPU; 2 bad input;
127 it cannot be started; 128 + N where signal N came before it was started"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what is asked for, and the command."""
    parser.epilog = _EXAMPLES
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="what to run, after --")
    add_request_arguments(parser, recurring=False, here=True)
    parser.add_argument("--name", help="what it is for (default: the command's name)")


def run(args: argparse.Namespace) -> int:
    """Reserve, wait, run, give back; the command's exit code."""
    _check(args)
    args.name = args.name or PurePath(args.command[0]).name
    with connect(args) as client, Signals() as signals:
        node = this_node()
        wanted = None
        if args.pool is not None:
            names = args.pool.split(",")
            wanted = [find_pool(client, name, field="--pool").id for name in names]
        args.pool = ",".join(pools_here(client, node, wanted))
        here = f"node={node}"
        args.select = here if args.select is None else f"{args.select},{here}"
        body, _ = asked(args, client)
        try:
            with naming(request_flags(args)):
                view = _reserve(client, signals, body)
            try:
                return _use(args, client, signals, view)
            finally:
                _give_back(client, signals, view.id)
        except StoppedError as stop:
            return stop.exit_code


def _check(args: argparse.Namespace) -> None:
    if all(getattr(args, form) is None for form in FORMS):
        forms = ", ".join(f"--{form}" for form in FORMS)
        raise InvalidInputError("no GPU is asked for", allowed=f"one of {forms}")
    if args.gang is not None:
        raise InvalidInputError(
            "a command runs on one machine, and a gang's members on several",
            field="--gang",
            given=args.gang,
            hint='Reserve, and on each node: eval "$(apportion env RESERVATION --node NODE)"',
        )
    program: str = args.command[0]
    if shutil.which(program) is None:
        raise InvalidInputError("there is no such program here", field="COMMAND", given=program)


def _reserve(client: "Client", signals: Signals, body: Mapping[str, object]) -> "ReservationView":
    """Reserve, and go on asking where no answer came: it may have been made by then."""
    request = {**body, "idempotency_key": f"run-{uuid4()}"}
    while True:
        try:
            return client.create_reservation(request)
        except UnavailableError as error:
            tell(f"{error.message}; trying on")
            signals.pause(_AGAIN)


def _use(
    args: argparse.Namespace, client: "Client", signals: Signals, view: "ReservationView"
) -> int:
    view = Wait(client, "active", signals.pause).until_over(view.id)
    if not is_reached(view, "active"):
        tell(f"{head(view, PoolNames(client))}: {view.reason.get('message')}")
        return 1
    variables = _devices(client, signals, view)
    until = NO_END if view.end is None else f"until {both_zones(view.end)}"
    tell(f"{head(view, PoolNames(client))}, {until}, as {variables[VISIBLE[-1]]}")
    try:
        pid = signals.start(args.command, {**os.environ, **variables})
    except OSError as error:
        tell(f"{args.command[0]}: {error.strerror}")
        return _NO_SUCH_COMMAND
    length = None if args.duration is None else parse_duration(args.duration, field="--for")
    return _attend(pid, signals, Lease(client, view, length))


def _devices(client: "Client", signals: Signals, view: "ReservationView") -> Mapping[str, str]:
    """Return the environment, as soon as the node has made what it selects."""
    told = ""
    while True:
        try:
            return environment_of(client, client.get_reservation(view.id))
        except (InvalidStateError, UnavailableError) as error:
            if not (error.message.startswith(MISSING) or isinstance(error, UnavailableError)):
                raise
            if error.message != told:
                told = error.message
                tell(f"{view.id}: {told}")
            signals.pause(_AGAIN)


def _attend(pid: int, signals: Signals, lease: Lease) -> int:
    """Look after the command and its reservation until it has ended; its exit code.

    Signals are passed on. One whose time is up is told to end, and is killed half a minute later.
    """
    looked = datetime.now(UTC)
    told: datetime | None = None
    while True:
        found = signals.next(looked + lease.look_every - datetime.now(UTC))
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        if found is not None and found.si_signo != signal.SIGCHLD:
            if not is_told_by_terminal(found):
                os.kill(pid, found.si_signo)
            continue
        now = datetime.now(UTC)
        if now < looked + lease.look_every:
            continue
        looked = now
        why = lease.why_over(now)
        if why is not None and told is None:
            told = now
            tell(f"{lease.view.id}: {why}; the command is told to end")
            os.kill(pid, signal.SIGTERM)
        elif told is not None and now - told > _KILLED_AFTER:
            os.kill(pid, signal.SIGKILL)


def _give_back(client: "Client", signals: Signals, reservation_id: str) -> None:
    """Release it, again and again for a minute; a further signal ends that."""
    until = datetime.now(UTC) + _GIVEN_UP_AFTER
    while True:
        try:
            view = client.release_reservation(reservation_id)
        except ApportionError as error:
            if isinstance(error, UnavailableError) and datetime.now(UTC) < until:
                tell(f"{error.message}; trying on to give {reservation_id} back")
                if _is_quiet(signals):
                    continue
            tell(
                f"{reservation_id} could not be given back: {error.message}. It is held to its end,"
                f" or until: apportion reservation release {reservation_id} --yes"
            )
        else:
            tell(f"{reservation_id}: {view.state}, {view.reason.get('message')}")
        return


def _is_quiet(signals: Signals) -> bool:
    """Pause; tells whether no signal came meanwhile."""
    try:
        signals.pause(_AGAIN)
    except StoppedError:
        return False
    return True
