"""Amounts of quota: how they come in, are stored, and are shown, exactly.

Class counts and huge pages are whole numbers; vcpu and memoryGiB are decimals; gpuEquivalents are
stored in whole fine units (`apportion.quantities.equivalents`) and shown as parts of a GPU.
"""

from decimal import Context, Decimal
from fractions import Fraction
from typing import Final

from apportion.errors import InvalidInputError
from apportion.pools.schemas import Quantity
from apportion.quantities.equivalents import PER_GPU, from_fine, to_fine
from apportion.quantities.shares import exact_text

EQUIVALENTS: Final = "gpuEquivalents"
_FRACTIONAL: Final = frozenset({"vcpu", "memoryGiB"})
_PLACES: Final = 10
# The default of 28 digits would round what is left of many GPUs in fine units.
_EXACT: Final = Context(prec=60)


def read_limit(resource: str, limit: int | str, *, field: str) -> Decimal | None:
    """Return a limit as it is stored, None for ``"unlimited"``.

    Raises InvalidInputError for a number that the resource cannot have.
    """
    if limit == "unlimited":
        return None
    number = Fraction(limit)
    if resource == EQUIVALENTS:
        if PER_GPU % number.denominator:
            raise _bad(field, limit, "a share whose denominator a GPU can have: 7/2, 2.5, 3")
        return Decimal(to_fine(number))
    if number.denominator == 1:
        return Decimal(number.numerator)
    exact = Decimal(number.numerator) / Decimal(number.denominator)
    if resource not in _FRACTIONAL or Fraction(exact) != number:
        allowed = f"a {'decimal' if resource in _FRACTIONAL else 'whole'} number of {resource}"
        raise _bad(field, limit, allowed)
    return exact


def subtract(limit: Decimal, used: Decimal) -> Decimal:
    """Return what is left of a limit, exactly; nothing where more is used."""
    return max(Decimal(0), _EXACT.subtract(limit, used))


def show_amount(resource: str, stored: Decimal) -> Quantity:
    """Return a stored amount: a number where it is whole, else exact text."""
    if resource == EQUIVALENTS:
        share = from_fine(int(stored))
        return share.numerator if share.denominator == 1 else str(share)
    number = Fraction(stored)
    return number.numerator if number.denominator == 1 else exact_text(number, _PLACES)


def show_limit(resource: str, stored: Decimal | None) -> Quantity:
    """Return a stored limit; ``"unlimited"`` for None."""
    return "unlimited" if stored is None else show_amount(resource, stored)


def _bad(field: str, given: object, allowed: str) -> InvalidInputError:
    return InvalidInputError("is no such amount", field=field, given=given, allowed=allowed)
