"""An operator's hand on MIG instances that the agent did not make, beside or without the agent."""

from contextlib import ExitStack
from pathlib import Path

from apportion.agent.alone import alone
from apportion.agent.devices.faults import HeldUpError
from apportion.agent.devices.unit import held_devices
from apportion.agent.driven import MIG_JOURNAL
from apportion.agent.host import host_root, read_host
from apportion.agent.identity import kept
from apportion.agent.mig.foreign import Foreign, destroy, foreign_instances
from apportion.agent.mig.journal import Journal
from apportion.agent.nvml import open_driver
from apportion.errors import InvalidStateError


def list_foreign(state: Path) -> list[Foreign]:
    """Return what the agent of that state directory did not make.

    DriverError without a driver, InvalidStateError where no agent has that directory: what it made
    would be taken for foreign.
    """
    _check_state(state)
    with open_driver() as driver:
        return list(foreign_instances(driver, _journal(state)))


def destroy_foreign(state: Path, name: str) -> Foreign:
    """Destroy one while no agent is at work there: it may be about to hand it out.

    Raises InvalidStateError where one is, where nobody can tell what it has handed out, and what
    `destroy` raises.
    """
    with ExitStack() as stack:
        _check_state(state)
        try:
            stack.enter_context(alone(state))
        except InvalidStateError as error:
            error.hint = "Stop the agent for it: holders, and what they have, outlive it"
            raise
        driver = stack.enter_context(open_driver())
        try:
            held = held_devices(state)
        except HeldUpError as error:
            raise InvalidStateError(str(error), field="state", given=str(state)) from error
        return destroy(driver, _journal(state), held, name)


def _check_state(state: Path) -> None:
    if kept(state) is None:
        raise InvalidStateError(
            "no agent of a node that has joined keeps its state there",
            field="state",
            given=str(state),
        )


def _journal(state: Path) -> Journal:
    return Journal(state / MIG_JOURNAL, read_host(host_root()).boot_id)
