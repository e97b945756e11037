"""Limits and policies in one form each, so that what is equal is seen to be equal.

A limit is a whole number where it is one, else exact text, else ``"unlimited"``; a number in a
policy is exact. The server shows limits in the same form.
"""

import json
from collections.abc import Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, cast

from apportion.errors import InvalidInputError
from apportion.pools.schemas import Quantity, QuotaView
from apportion.quantities.equivalents import PER_GPU
from apportion.quantities.shares import exact_text

EQUIVALENTS: Final = "gpuEquivalents"
UNLIMITED: Final = "unlimited"
UNBOUNDED_GPUS: Final[Mapping[str, Quantity]] = {"gpu": 2147483647}
"""What an owner may use of a new pool where nothing is said."""

Limits = dict[str, Quantity]

_DECIMAL: Final = frozenset({"vcpu", "memoryGiB"})
_PLACES: Final = 10


def limit_of(resource: str, given: int | str) -> Quantity:
    """Return a limit in its one form; InvalidInputError for one that the resource cannot have."""
    if given == UNLIMITED:
        return UNLIMITED
    number = Fraction(given)
    if number.denominator == 1:
        return number.numerator
    if resource == EQUIVALENTS and PER_GPU % number.denominator == 0:
        return str(number)
    if resource in _DECIMAL and not _has_no_end(number):
        return exact_text(number, _PLACES)
    kind = "decimal" if resource in _DECIMAL else "whole"
    allowed = (
        "a share whose denominator a GPU can have: 7/2, 2.5, 3"
        if resource == EQUIVALENTS
        else f"a {kind} number of {resource}"
    )
    raise InvalidInputError("is no such amount", given=given, allowed=allowed)


def granted(limits: Mapping[str, Quantity]) -> Limits:
    """Leave out what says nothing: 0, which is what no row grants, and unlimited equivalents."""
    return {
        resource: limit
        for resource, limit in sorted(limits.items())
        if limit != (UNLIMITED if resource == EQUIVALENTS else 0)
    }


def granted_by(quotas: Iterable[QuotaView]) -> Limits:
    """Return what rows of the server grant, as `granted` has it."""
    return granted({EQUIVALENTS: 0} | {quota.resource: quota.max for quota in quotas})


def limits_to_set(wanted: Mapping[str, Quantity], there: Mapping[str, Quantity]) -> Limits:
    """Return the limits that turn what is granted into what is wanted."""
    none: Limits = {resource: _unsaid(resource) for resource in there}
    return {
        resource: limit
        for resource, limit in {**none, **wanted}.items()
        if there.get(resource, _unsaid(resource)) != limit
    }


def exact(value: Any) -> Any:
    """Return a JSON value with exact numbers: a float means its shortest text, as JSON has it."""
    if isinstance(value, float):
        return _whole_or(Decimal(repr(value)))
    if isinstance(value, Decimal):
        return _whole_or(value)
    if isinstance(value, list):
        return [exact(each) for each in cast("list[Any]", value)]
    if isinstance(value, Mapping):
        return {name: exact(each) for name, each in cast("Mapping[str, Any]", value).items()}
    return value


def sent(value: Any, path: tuple[str | int, ...] = ()) -> Any:
    """Return a JSON value as the client sends it.

    Raises InvalidInputError with the path of a number that would not arrive as it is.
    """
    if isinstance(value, Decimal):
        near = float(value)
        if Decimal(repr(near)) != value:
            raise InvalidInputError(
                "has more digits than a number of JSON carries safely",
                field=".".join(map(str, path)),
                given=str(value),
                allowed=f"{near!r}, or text",
                details={"path": path},
            )
        return near
    if isinstance(value, list):
        return [sent(each, (*path, at)) for at, each in enumerate(cast("list[Any]", value))]
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {name: sent(each, (*path, name)) for name, each in items}
    return value


def same(one: Any, other: Any) -> bool:
    """Tell whether two JSON values are equal; true is no 1 here, as it is in Python."""
    return _text(one) == _text(other)


def _text(value: Any) -> str:
    return json.dumps(exact(value), sort_keys=True, default=lambda number: [str(number)])


def _whole_or(number: Decimal) -> int | Decimal:
    return int(number) if number == number.to_integral_value() else number.normalize()


def _unsaid(resource: str) -> Quantity:
    return UNLIMITED if resource == EQUIVALENTS else 0


def _has_no_end(number: Fraction) -> bool:
    return 10**_PLACES % number.denominator != 0
