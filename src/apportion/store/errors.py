"""What PostgreSQL refuses, said in the domain's words.

The schema's rules are named constraints. Each room says once, when its service is imported, what
breaking one of its constraints means to a caller:

    register({"pools_name_key": lambda violation: ConflictError("...", field="name")})
    register(guards("pools_class_known", "pools_split"))

``translate`` finds the meaning by the constraint's name. Primary and foreign keys that no room
names go by rule, and what has no name (a lost connection, a lock waited for too long) by SQLSTATE.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from psycopg import Error, InterfaceError, OperationalError, errors
from psycopg_pool import PoolTimeout

from apportion.errors import ApportionError, ConflictError, InvalidInputError, UnavailableError

RETRYABLE: Final = (errors.SerializationFailure, errors.DeadlockDetected)

_TOO_LONG: Final = (
    errors.QueryCanceled,
    errors.LockNotAvailable,
    # Ours stood still in the middle: who loads the picture of a large fleet keeps others waiting.
    errors.IdleInTransactionSessionTimeout,
    errors.TransactionTimeout,
)
_UNSTORABLE: Final = (
    errors.NumericValueOutOfRange,
    errors.DatetimeFieldOverflow,
    errors.CharacterNotInRepertoire,
    errors.UntranslatableCharacter,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A broken constraint: its name, its table, and PostgreSQL's line about the clashing key."""

    constraint: str
    table: str
    detail: str


Meaning = Callable[[Violation], ApportionError]

_meanings: Final[dict[str, Meaning]] = {}


def register(meanings: Mapping[str, Meaning]) -> None:
    """Add a room's constraints. A name that is registered already is a ValueError."""
    if taken := sorted(_meanings.keys() & meanings.keys()):
        raise ValueError(f"registered already: {', '.join(taken)}")
    _meanings.update(meanings)


def registered() -> frozenset[str]:
    """Return the names of the constraints that have a meaning."""
    return frozenset(_meanings)


def guards(*names: str) -> dict[str, Meaning]:
    """Give constraints that our own code checks first the meaning "this is our fault"."""
    return dict.fromkeys(names, _our_fault)


def translate(error: Error) -> ApportionError:
    """Return what PostgreSQL or the driver refused as an error of ours, for the caller to raise."""
    violation = Violation(
        constraint=error.diag.constraint_name or "",
        table=error.diag.table_name or "",
        detail=error.diag.message_detail or "",
    )
    if meaning := _meanings.get(violation.constraint):
        return meaning(violation)
    if isinstance(error, errors.IntegrityError):
        return _by_rule(error, violation)
    return _by_state(error)


def _by_rule(error: Error, violation: Violation) -> ApportionError:
    details = {"constraint": violation.constraint, "detail": violation.detail}
    if isinstance(error, errors.UniqueViolation):
        return ConflictError(f"this exists already in {violation.table}", details=details)
    if isinstance(error, errors.ForeignKeyViolation | errors.RestrictViolation):
        return ConflictError(
            f"what {violation.table} refers to was changed by somebody else meanwhile",
            hint="Read it again and retry.",
            details=details,
        )
    return _our_fault(violation)


def _our_fault(violation: Violation) -> ApportionError:
    return ApportionError(
        f"the database refused a row of {violation.table}, and Apportion should have seen it first",
        details={"constraint": violation.constraint, "detail": violation.detail},
    )


def _by_state(error: Error) -> ApportionError:
    details = {"sqlstate": error.sqlstate}
    if isinstance(error, RETRYABLE):
        return UnavailableError("too many others change the same rows; try again", details=details)
    if isinstance(error, _TOO_LONG):
        return UnavailableError("the database took too long; try again", details=details)
    if isinstance(error, PoolTimeout):
        return UnavailableError("no connection to the database is free; try again")
    if isinstance(error, _UNSTORABLE) or _has_nul(error):
        return InvalidInputError(f"a value cannot be stored: {_line(error)}", details=details)
    # A database that takes no writes is one that others have taken over from.
    if isinstance(error, OperationalError | InterfaceError | errors.ReadOnlySqlTransaction):
        return UnavailableError(f"the database cannot be reached: {_line(error)}", details=details)
    return ApportionError(f"the database refused a statement: {_line(error)}", details=details)


def _has_nul(error: Error) -> bool:
    """Tell the driver's refusal of a NUL character in a text, which has no SQLSTATE."""
    return isinstance(error, errors.DataError) and error.sqlstate is None and "NUL" in str(error)


def _line(error: Error) -> str:
    return (error.diag.message_primary or str(error)).strip().replace("\n", "; ")
