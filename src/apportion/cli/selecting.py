"""The selector of ``--select``: the words of `kubectl -l`, turned into matchExpressions."""

import re
from typing import Final

from apportion.errors import InvalidInputError
from apportion.placement.selectors import Expression, check_expression

GRAMMAR: Final = (
    "conditions with commas between: key=value, key!=value, key in (a,b), key notin (a,b), "
    "key>8, key<8, key (has it), !key (has it not)"
)

_KEY = r"([A-Za-z][A-Za-z0-9]*)"
_SET = re.compile(_KEY + r"\s+(in|notin)\s*\(([^()]*)\)")
_COMPARED = re.compile(_KEY + r"\s*(==|=|!=|>|<)\s*([^=<>!()]*)")
_PRESENT = re.compile(r"(!?)\s*" + _KEY)
_OPERATORS = {"in": "In", "notin": "NotIn", "=": "In", "==": "In", "!=": "NotIn"}
_OUTSIDE_PARENTHESES = re.compile(r",(?![^()]*\))")


def parse_selector(text: str, *, field: str) -> tuple[Expression, ...]:
    """Read and check the conditions, all of which have to hold.

    Raises InvalidInputError for what is no condition, an attribute that no atom has, and ``>`` and
    ``<`` with anything but one whole number.
    """
    return tuple(_condition(term.strip(), field) for term in _OUTSIDE_PARENTHESES.split(text))


def _condition(term: str, field: str) -> Expression:
    if match := _SET.fullmatch(term):
        values = tuple(value.strip() for value in match[3].split(","))
        key, op = match[1], _OPERATORS[match[2]]
    elif match := _COMPARED.fullmatch(term):
        values = (match[3].strip(),)
        key, op = match[1], {">": "Gt", "<": "Lt"}.get(match[2]) or _OPERATORS[match[2]]
    elif match := _PRESENT.fullmatch(term):
        values = ()
        key, op = match[2], "DoesNotExist" if match[1] else "Exists"
    else:
        raise InvalidInputError("is no condition", field=field, given=term[:60], allowed=GRAMMAR)
    if "" in values:
        raise InvalidInputError("has an empty value", field=field, given=term[:60], allowed=GRAMMAR)
    return check_expression(key, op, values, field=field)
