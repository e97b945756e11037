"""The agent's loop: what is asked, what is there, the next safe step, and what came of it.

It is level-triggered. Each round begins from the last spec that the server signed, which lies on
disk, so that it goes on through an outage and after a restart; each ends with a report of what is
there by then. Nothing is remembered between rounds that the next one would be wrong without.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import structlog
from pydantic import ValidationError

from apportion.agent.acceptance import run_check
from apportion.agent.files import keep, read_if_there
from apportion.agent.link import Link
from apportion.agent.units import Outcome, Unit
from apportion.agent.uplink import Uplink
from apportion.errors import ApportionError, InvalidInputError, UnavailableError
from apportion.nodes.schemas import NodeSpec

INTERVAL_SECONDS: Final = 10
"""How often a report is made, before a spec says otherwise."""

_SPEC_FILE: Final = "spec.json"
_SPEC: Final = "spec"
"""What the report calls the keeping of the spec itself, where that fails."""

_log: Final = structlog.get_logger()


@runtime_checkable
class Tells(Protocol):
    """A unit that has more to say in the report than whether it is done."""

    def facts(self) -> Mapping[str, Any]:
        """Return fields of the report, such as ``allocations``."""
        ...


class Machine(Protocol):
    """What the loop looks at and acts on."""

    def observe(self) -> Mapping[str, Any]:
        """Return the inventory document, as of now."""
        ...

    def units(self) -> Sequence[Unit]:
        """Return the units that this round can make, or say why they cannot."""
        ...

    def facts(self) -> Mapping[str, Any]:
        """Return fields of the report that no unit tells."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A machine that somebody else describes; with units, somebody acts on it all the same."""

    document: Callable[[], Mapping[str, Any]]
    acting: Sequence[Unit] = ()
    told: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def observe(self) -> Mapping[str, Any]:
        """Return the inventory document, as of now."""
        return self.document()

    def units(self) -> Sequence[Unit]:
        """Return the units."""
        return self.acting

    def facts(self) -> Mapping[str, Any]:
        """Return fields of the report that no unit tells."""
        return self.told


class Loop:
    """One node's agent; ``now`` is its clock."""

    def __init__(
        self, state: Path, link: Link, uplink: Uplink, machine: Machine, now: Callable[[], datetime]
    ) -> None:
        """Begin with the last spec that an earlier life of the agent has read."""
        self._file = state / _SPEC_FILE
        self._link = link
        self._uplink = uplink
        self._machine = machine
        self._now = now
        self._behind = True
        self._unkept: Outcome | None = None
        self._outcomes: Mapping[str, Outcome] = {}
        self.spec: NodeSpec | None = self._kept()

    def run(self, wait: Callable[[int], bool]) -> None:
        """Go round until ``wait``, which is given seconds, says that it is time to stop."""
        while not wait(self.round()):
            pass

    def round(self) -> int:
        """Go round once; returns in how many seconds the next one is due.

        What goes wrong with the server or the machine is logged, and the next round tries again.
        """
        if self._behind:
            self._attempt("read spec", self._read_spec)
        if self.spec is None:
            return INTERVAL_SECONDS
        spec, units = self.spec, self._machine.units()
        outcomes = _converge(spec, units, self._now)
        if self._unkept is not None:
            outcomes[_SPEC] = self._unkept
        self._attempt("report", lambda: self._report(spec, units, outcomes))
        if self._behind:
            self._attempt("read spec", self._read_spec)
        if self.spec != spec:
            return 0
        # One unit's step may be what another waits for: no need to let it wait for the next report.
        settled, self._outcomes = outcomes == self._outcomes, outcomes
        return spec.report_every_seconds if settled else min(1, spec.report_every_seconds)

    def _read_spec(self) -> None:
        spec = self._link.read_spec()
        if self.spec is None or spec != self.spec:
            self._keep(spec)
        self.spec, self._behind = spec, False

    def _keep(self, spec: NodeSpec) -> None:
        """Put on disk what is asked: what a restart would forget must not be acted on."""
        try:
            keep(self._file, spec.model_dump_json())
        except UnavailableError as error:
            message = f"what is asked cannot be kept: {error.given} {error.message}"
            self._unkept = Outcome(done=False, reason="state_not_written", message=message)
            raise
        self._unkept = None

    def _kept(self) -> NodeSpec | None:
        content = read_if_there(self._file)
        with suppress(ValidationError):
            return None if content is None else NodeSpec.model_validate_json(content)
        return None

    def _report(
        self, spec: NodeSpec, units: Sequence[Unit], outcomes: Mapping[str, Outcome]
    ) -> None:
        document = self._machine.observe()
        facts = dict(self._machine.facts())
        for unit in units:
            if isinstance(unit, Tells):
                facts |= unit.facts()
        self._uplink.add(
            {
                **facts,
                "observed_generation": spec.generation,
                "converged": {
                    name: spec.generation
                    for name, outcome in outcomes.items()
                    if outcome.done and name in spec.units
                },
                "outcomes": {
                    name: outcome.told()
                    for name, outcome in outcomes.items()
                    if name in spec.units or not outcome.done
                },
                "acceptance": {step["kind"]: _checked(step, document) for step in spec.acceptance},
                "inventory": dict(document),
            }
        )
        answer = self._uplink.drain()
        self._behind = answer is None or answer.generation != spec.generation

    def _attempt(self, what: str, do: Callable[[], None]) -> bool:
        try:
            do()
        except UnavailableError as error:
            away = "not kept" if error.field == "state" else "server away"
            _log.warning(away, step=what, reason=str(error), waiting=self._uplink.waiting)
        except ApportionError as error:
            _log.error("refused", step=what, code=error.code, reason=str(error))
        except Exception:  # noqa: BLE001 - a fault of ours
            # The node keeps what it has, and the next round tries again.
            _log.exception("step broke", step=what)
        else:
            return True
        self._behind = True
        return False


def _converge(
    spec: NodeSpec, units: Sequence[Unit], now: Callable[[], datetime]
) -> dict[str, Outcome]:
    """Let each unit take its next steps; one that nobody here knows cannot be done."""
    outcomes = {unit.name: _converged(unit, spec.units.get(unit.name), now()) for unit in units}
    for name in spec.units.keys() - outcomes.keys():
        message = f"nothing on this node can make the unit {name}"
        outcomes[name] = Outcome(done=False, reason="no_such_unit", message=message)
    return outcomes


def _converged(unit: Unit, wanted: Mapping[str, Any] | None, now: datetime) -> Outcome:
    try:
        return unit.converge(wanted, now)
    except Exception as error:  # noqa: BLE001 - a fault of ours
        # One unit that breaks keeps none of the others from its steps.
        _log.exception("unit broke", unit=unit.name)
        message = f"{type(error).__name__}: {error}"
        return Outcome(done=False, reason="unit_broke", message=message)


def _checked(step: Mapping[str, Any], document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Run a check that a new machine must pass, for as long as the spec asks for it."""
    kind = step["kind"]
    try:
        result = run_check(kind, document, step)
    except InvalidInputError:
        return {"passed": False, "details": {"reason": "no_such_check"}}
    except Exception as error:  # noqa: BLE001 - a fault of ours, which passes for no machine
        _log.exception("check broke", kind=kind)
        message = f"{type(error).__name__}: {error}"
        return {"passed": False, "details": {"reason": "check_broke", "message": message}}
    return {"passed": result.passed, "details": {"wrong": list(result.details)}}
