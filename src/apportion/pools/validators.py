"""What judges a pool's policy before it is written, and what follows in the same transaction.

A small registry that other rooms add to: what the policy means for nodes is known to the room of
the nodes. A validator says everything that is wrong; a follow-up makes the change true everywhere.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import psycopg
import structlog

from apportion.authority.service import Caller
from apportion.errors import ApportionError, InvalidInputError
from apportion.pools.policy_rules import policy_problems
from apportion.store.connections import Connection

_log: Final = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolBefore:
    """What an update replaces, and when: what is booked from ``now`` on may speak against it."""

    gpu_model: str
    policy: Mapping[str, Any]
    now: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolChange:
    """A pool as it would be: ``cls`` is its class, ``owner`` its tenant.

    ``before`` is None where it would be created, ``pool_id`` where it has no id yet.
    """

    pool_id: str | None
    owner: str
    cls: str
    sharing: str
    gpu_model: str
    policy: Mapping[str, Any]
    before: PoolBefore | None


Validator = Callable[[Connection, PoolChange], Awaitable[Sequence[ApportionError]]]
FollowUp = Callable[[Connection, Caller, PoolChange, datetime], Awaitable[None]]

_VALIDATORS: Final[dict[str, Validator]] = {}
_FOLLOW_UPS: Final[dict[str, FollowUp]] = {}


def register_validator(name: str, validator: Validator) -> None:
    """Let a room judge policies; a name that is taken is replaced."""
    _VALIDATORS[name] = validator


def register_follow_up(name: str, hook: FollowUp) -> None:
    """Let a room act on a change that was written, in the same transaction."""
    _FOLLOW_UPS[name] = hook


async def problems(connection: Connection, change: PoolChange) -> list[ApportionError]:
    """Return everything that speaks against a change, the policy's own fields first."""
    found: list[ApportionError] = [
        *policy_problems(change.policy, change.sharing, change.gpu_model)
    ]
    for name, validator in sorted(_VALIDATORS.items()):
        found += await _judged(name, validator, connection, change)
    # Two validators may trip over the same bad value.
    told = {(type(error), error.field, error.message): error for error in reversed(found)}
    return [error for error in found if told[type(error), error.field, error.message] is error]


async def applied(
    connection: Connection, caller: Caller, change: PoolChange, now: datetime
) -> None:
    """Make a change that was just written true everywhere; raises what undoes it."""
    for _, hook in sorted(_FOLLOW_UPS.items()):
        await hook(connection, caller, change, now)


async def _judged(
    name: str, validator: Validator, connection: Connection, change: PoolChange
) -> Sequence[ApportionError]:
    try:
        return await validator(connection, change)
    except ApportionError as error:
        return [error]
    except psycopg.Error:
        # The database's own trouble says nothing about the policy, and may be tried again.
        raise
    except Exception as error:  # noqa: BLE001  whatever it is, its words reach who wrote the policy
        _log.exception("a policy validator failed", validator=name)
        return [InvalidInputError(f"policy: {error}", field="policy")]
