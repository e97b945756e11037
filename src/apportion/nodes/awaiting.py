"""What a node has yet to do before it takes work, as a code and as a reason with its data: pure."""

from collections.abc import Mapping
from typing import Any

from apportion.nodes.atoms import NOT_CHECKED, NOT_CONVERGED, NOT_PASSED
from apportion.nodes.schemas import CheckResult
from apportion.pools.policy import PoolPolicy
from apportion.pools.service import PoolRecord
from apportion.quantities.windows import format_instant

Reason = dict[str, Any]


def awaited(pool: PoolRecord, agent: str | None, standing: Mapping[str, Any] | None) -> str | None:
    """Return what a node with an agent has yet to do, as the code of atoms that wait for it.

    That is to become, once, what it is asked to be, and then to pass the pool's acceptance; None
    where nobody follows its spec. ``standing`` is the node as it was last, None where it is new.
    """
    followed = agent or (None if standing is None else standing["agent"])
    if followed is None or pool.agent == "none":
        return None
    if standing is None or standing["converged_at"] is None:
        return NOT_CONVERGED
    if standing["accepted_at"] is not None or not pool.policy.acceptance:
        return None
    return NOT_PASSED if _failed(standing["acceptance"]) else NOT_CHECKED


def has_passed(policy: PoolPolicy, results: Mapping[str, CheckResult]) -> bool:
    """Tell whether a report has all that a pool asks of new nodes."""
    return all(step.kind in results and results[step.kind].passed for step in policy.acceptance)


def reason_of(node: Mapping[str, Any], policy: PoolPolicy, *, followed: bool) -> Reason | None:
    """Say as data why a node takes no work though its GPUs may be well; None where it does."""
    if node["stale_since"] is not None:
        return _stale(node)
    if not followed:
        return None
    if node["converged_at"] is None:
        undone = {k: v for k, v in node["outcomes"].items() if not v["done"]}
        message = "its agent has yet to make it what it is asked to be"
        return {"code": NOT_CONVERGED, "message": message, "units": undone}
    if node["accepted_at"] is not None or not policy.acceptance:
        return None
    checks = {step.kind: node["acceptance"].get(step.kind) for step in policy.acceptance}
    failed = _failed(node["acceptance"])
    if failed:
        message = f"it has not passed {', '.join(failed)}"
        return {"code": NOT_PASSED, "message": message, "checks": checks}
    message = "its agent has yet to say whether it passes what its pool asks of new nodes"
    return {"code": NOT_CHECKED, "message": message, "checks": checks}


def _stale(node: Mapping[str, Any]) -> Reason:
    heard = node["observed_at"] or node["enrolled_at"]
    why = "its key is revoked" if node["revoked_at"] is not None else "nothing is heard of it"
    return {
        "code": "node_stale",
        "message": f"{why}: nothing new is booked on it, and what is booked stays",
        "since": format_instant(node["stale_since"]),
        "heard_at": format_instant(heard),
    }


def _failed(results: Mapping[str, Any]) -> list[str]:
    return sorted(name for name, result in results.items() if not result["passed"])
