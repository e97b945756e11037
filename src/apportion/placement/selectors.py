"""Selectors on atom attributes: ``matchExpressions`` with In, NotIn, Exists, DoesNotExist, Gt, Lt.

The operators mean what they mean in Kubernetes label selectors: ``NotIn`` holds when the
attribute is absent, ``Gt`` and ``Lt`` compare whole numbers and fail when it is absent or not
one. Values are compared as text, so ``80`` and ``"80"`` are the same; ``gpuModel`` ignores case.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from apportion.errors import InvalidInputError

Operator = Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
Attributes = Mapping[str, str | int]

# Attributes that many atoms share; a selector on these is decided once for a whole group of GPUs.
GROUP_KEYS: Final = (
    "gpuProduct",
    "gpuModel",
    "migProfile",
    "sharing",
    "slots",
    "shares",
    "mpsUnits",
    "numaNode",
)
# Attributes that tell atoms of one group apart.
ATOM_KEYS: Final = (
    "node",
    "gpuUuid",
    "gpuIndex",
    "pcieRoot",
    "vramGiB",
    "slot",
    "giId",
    "ciId",
    "migUuid",
)
KEYS: Final = GROUP_KEYS + ATOM_KEYS

_CASE_FREE: Final = frozenset({"gpuModel"})


@dataclass(frozen=True, slots=True)
class Expression:
    """One condition: ``key`` (of `KEYS`), operator, and its values as text."""

    key: str
    op: Operator
    values: tuple[str, ...] = ()

    def matches(self, attributes: Attributes) -> bool:
        """Tell whether an atom with these attributes satisfies the condition."""
        value = attributes.get(self.key)
        match self.op:
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "In":
                return value is not None and self._holds(value)
            case "NotIn":
                return value is None or not self._holds(value)
            case "Gt":
                number = _whole(value)
                return number is not None and number > int(self.values[0])
            case "Lt":
                number = _whole(value)
                return number is not None and number < int(self.values[0])

    def _holds(self, value: str | int) -> bool:
        text = str(value)
        if self.key in _CASE_FREE:
            return text.casefold() in {each.casefold() for each in self.values}
        return text in self.values


@dataclass(frozen=True, slots=True)
class Selector:
    """All of its expressions; the empty selector matches everything.

    ``on_group`` is the part that is decided once for all GPUs that share their `GROUP_KEYS`,
    ``on_atom`` the part that has to be asked of each.
    """

    expressions: tuple[Expression, ...] = ()
    on_group: tuple[Expression, ...] = field(init=False, compare=False, repr=False)
    on_atom: tuple[Expression, ...] = field(init=False, compare=False, repr=False)
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Part the expressions once, so that matching need not; asks are looked up by them."""
        shared = tuple(e for e in self.expressions if e.key in GROUP_KEYS)
        apart = tuple(e for e in self.expressions if e.key not in GROUP_KEYS)
        object.__setattr__(self, "on_group", shared)
        object.__setattr__(self, "on_atom", apart)
        object.__setattr__(self, "_hash", hash(self.expressions))

    def __hash__(self) -> int:
        """Return what was worked out once."""
        return self._hash

    def matches(self, attributes: Attributes) -> bool:
        """Tell whether every expression holds."""
        return all(expression.matches(attributes) for expression in self.expressions)

    def matches_group(self, attributes: Attributes) -> bool:
        """Tell whether every expression on shared attributes holds."""
        return all(expression.matches(attributes) for expression in self.on_group)


ANYTHING: Final = Selector()
"""The empty selector."""


def shared(attributes: Attributes) -> frozenset[tuple[str, str | int]]:
    """Return the attributes that whole groups share, as a key of the group."""
    return frozenset(item for item in attributes.items() if item[0] in GROUP_KEYS)


def check_expression(key: str, op: str, values: tuple[str, ...], *, field: str) -> Expression:
    """Validate one expression that came in; raises InvalidInputError naming its part."""
    if key not in KEYS:
        raise InvalidInputError(
            "no atom has such an attribute",
            field=f"{field}.key",
            given=key,
            allowed=", ".join(KEYS),
        )
    match op:
        case "In" | "NotIn":
            if not values:
                raise InvalidInputError(f"{op} needs at least one value", field=f"{field}.values")
        case "Exists" | "DoesNotExist":
            if values:
                raise InvalidInputError(
                    f"{op} takes no values", field=f"{field}.values", given=list(values)
                )
        case "Gt" | "Lt":
            if len(values) != 1 or _whole(values[0]) is None:
                raise InvalidInputError(
                    f"{op} needs exactly one whole number",
                    field=f"{field}.values",
                    given=list(values),
                )
        case _:
            raise InvalidInputError(
                "no such operator",
                field=f"{field}.op",
                given=op,
                allowed="In, NotIn, Exists, DoesNotExist, Gt, Lt",
            )
    return Expression(key, op, values)


def _whole(value: str | int | None) -> int | None:
    if isinstance(value, str):
        digits = value.removeprefix("-")
        return int(value) if digits.isascii() and digits.isdigit() else None
    return value
