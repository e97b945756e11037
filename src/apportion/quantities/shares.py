"""Fractions of a GPU, exact from the text on. Pure.

One grammar, wherever a fraction can enter (CLI, API, files, annotations)::

    fraction = digits "/" digits                                      1/7
             | digits "m"                                             500m  (thousandths)
             | ( digits [ "." digits ] | "." digits ) [ exponent ]    1  0.1  .5  1e-1
    exponent = ( "e" | "E" ) [ "+" | "-" ] 1*2DIGIT
    digits   = 1*DIGIT                                                ASCII only

At most 40 characters, greater than 0. No sign, no spaces, no ``_``, no ``%``, no decimal comma, no
NaN or infinity, no hexadecimal. A Python float means its shortest ``repr`` (0.1 is one tenth, not
the nearest binary fraction); a bool is refused.
"""

import re
from decimal import Decimal
from fractions import Fraction
from typing import Final, TypeAlias

from apportion.errors import InvalidInputError

FRACTION_GRAMMAR: Final = "a number greater than 0 such as 0.25, .5, 1/7, 500m or 1e-1"
SHARE_GRAMMAR: Final = "a fraction below 1 (0.25, 1/7, 500m) or a whole number of GPUs (1, 2, 8)"

Number: TypeAlias = str | int | float | Decimal | Fraction

_LONGEST = 40
_RATIO = r"([0-9]+)/([0-9]+)"
_MILLI = r"([0-9]+)m"
_DECIMAL = r"(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,2})?"


def parse_fraction(value: Number, *, field: str = "fraction") -> Fraction:
    """Read a fraction by the grammar above: exact, greater than 0.

    Raises InvalidInputError that names ``field``, what was given and what is allowed.
    """
    fraction = parse_number(value, field=field, allowed=FRACTION_GRAMMAR)
    if fraction == 0:
        raise InvalidInputError(
            "must be greater than 0", field=field, given=value, allowed=FRACTION_GRAMMAR
        )
    return fraction


def parse_share_of_gpus(value: Number, *, field: str = "fraction") -> Fraction:
    """Read how much of the GPUs somebody asks for: a fraction below 1, or n >= 1 whole GPUs.

    Raises InvalidInputError for what `parse_fraction` refuses, and for 5.3333: a job cannot own a
    third of a second GPU without saying how it shares it.
    """
    share = parse_fraction(value, field=field)
    if share > 1 and share.denominator != 1:
        below = share.numerator // share.denominator
        raise InvalidInputError(
            "above 1 must be whole",
            field=field,
            given=value,
            allowed=SHARE_GRAMMAR,
            hint=f"Ask for {below} or {below + 1} whole GPUs",
        )
    return share


def parse_number(value: Number, *, field: str, allowed: str) -> Fraction:
    """Read a number by the grammar above, 0 included; the callers say what range they allow.

    Raises InvalidInputError with ``allowed`` as the words for what would be accepted.
    """
    text = _as_text(value)
    if text is not None and len(text) <= _LONGEST:
        if ratio := re.fullmatch(_RATIO, text):
            if int(ratio[2]) != 0:
                return Fraction(int(ratio[1]), int(ratio[2]))
        elif milli := re.fullmatch(_MILLI, text):
            return Fraction(int(milli[1]), 1000)
        elif re.fullmatch(_DECIMAL, text):
            return Fraction(text)
    raise InvalidInputError(_why_not(text), field=field, given=_shown(value), allowed=allowed)


def format_share(share: Fraction) -> str:
    """Write a share as JSON and the API carry it: ``"3/7"``, ``"1"``."""
    return str(share)


def exact_text(value: Fraction, places: int = 6) -> str:
    """Write a number for people, unrounded: ``0.25`` if few decimals are exact, else ``3/7``."""
    scaled = value * 10**places
    if scaled.denominator != 1:
        return str(value)
    text = decimal_text(value, places)
    return text.rstrip("0").rstrip(".") if places else text


def decimal_text(value: Fraction, places: int = 6) -> str:
    """Write a number for people with so many decimals, rounded once, half to even: ``0.928571``.

    Never feed the result back into a sum: the exact share stays the value that is stored.
    """
    scaled = round(value * 10**places)
    digits = str(abs(scaled)).rjust(places + 1, "0")
    sign = "-" if scaled < 0 else ""
    return f"{sign}{digits[:-places]}.{digits[-places:]}" if places else f"{sign}{digits}"


def percent_text(share: Fraction) -> str:
    """Write a share as a percentage for people, with two decimals at most: ``75%``, ``85.71%``."""
    return decimal_text(share * 100, 2).rstrip("0").rstrip(".") + "%"


def _as_text(value: object) -> str | None:
    """Give the text that the grammar judges; None for what is no number at all.

    A Decimal is read as text too, so that ``Decimal("1e-999999999")`` is refused by its exponent
    rather than expanded to a billion digits.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, int | Fraction):
        return str(value) if _is_small(value) else "0" * (_LONGEST + 1)
    return None


def _is_small(value: int | Fraction) -> bool:
    """Tell whether writing the number out is safe: str() of a huge int raises in CPython."""
    limit = 4 * _LONGEST
    return value.numerator.bit_length() <= limit and value.denominator.bit_length() <= limit


def _shown(value: object) -> object:
    """Echo what was given, cut short where it is long: the message goes to terminals and logs."""
    if isinstance(value, int | Fraction) and not _is_small(value):
        return "a number of more than 40 digits"
    if isinstance(value, str) and len(value) > _LONGEST:
        return f"{value[:_LONGEST]}…"
    return value


def _why_not(text: str | None) -> str:
    """Say what is wrong with a text that the grammar does not know, in the user's terms."""
    if text is None:
        return "is not a number"
    bare = text.lstrip("+-").lower()
    reasons = (
        (text == "", "is empty"),
        (len(text) > _LONGEST, f"is longer than {_LONGEST} characters"),
        (text != text.strip() or " " in text, "has spaces"),
        (bare in {"nan", "inf", "infinity", "snan"}, "is not a finite number"),
        (text[:1] == "-", "must not be negative"),
        ("%" in text, "a percentage is not accepted: write 50% as 0.5"),
        ("," in text, "a decimal comma is not accepted: write 0,5 as 0.5"),
        ("/" in text and re.fullmatch(_RATIO, text), "a denominator of 0 has no value"),
    )
    return next((reason for wrong, reason in reasons if wrong), "is not a number of this grammar")
