"""A host as the agent's units compare it, each outcome as a report would carry it."""

import json
from datetime import UTC, datetime

from apportion.agent.hosting import host_units
from apportion.nodes.outcomes import UnitOutcome

NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)


def compared(root, name, wanted, now=NOW):
    """Let the unit of that name compare, and check that a report can carry what it says."""
    unit = next(each for each in host_units(root, "n1") if each.name == name)
    return sendable(unit.converge(wanted, now))


def sendable(outcome):
    fields = {name: getattr(outcome, name) for name in ("done", "reason", "message", "objects")}
    rows = [
        {name: getattr(each, name) for name in ("field", "wanted", "found", "object")}
        for each in outcome.mismatches
    ]
    UnitOutcome.model_validate_json(json.dumps({**fields, "mismatches": rows}))
    return outcome
