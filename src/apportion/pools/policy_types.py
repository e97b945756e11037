"""What the values of policy fields are made of: each reads its notation and says what it allows.

A reader gets what JSON carries and returns an exact value, or raises an error of ours; pydantic
adds the path, goes on, and so finds all that is wrong in one pass.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any, Final, TypeAlias, cast

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError, core_schema

from apportion.errors import ApportionError, InvalidInputError
from apportion.quantities.shares import parse_number
from apportion.quantities.sizes import parse_memory_gib, parse_milli_cpu
from apportion.quantities.windows import DURATION_GRAMMAR, parse_duration

RATIO_MIN: Final = Fraction(1, 10)
RATIO_MAX: Final = Fraction(100)
LARGEST_COUNT: Final = 2**31 - 1

_ZERO: Final = r"0[smhdw]?|P0D|PT0[HMS]"
_PERCENT: Final = r"(?:[1-9][0-9]?|100)%"
_CPUS: Final = r"[0-9]{1,5}(?:-[0-9]{1,5})?(?:,[0-9]{1,5}(?:-[0-9]{1,5})?)*"
_NUMBER: Final = {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}]}


class Section(BaseModel):
    """The base of all objects in a policy: null is absent, an unknown field is a slip."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        given = cast("Mapping[str, Any]", value)
        return {key: each for key, each in given.items() if each is not None}


class OpenSection(Section):
    """An object whose unknown fields are stored as given, like those of the policy itself."""

    model_config = ConfigDict(extra="ignore")


@dataclass(frozen=True, slots=True, eq=False)
class Reads:
    """How a value is read, and the JSON Schema of what is accepted: an annotation of fields."""

    read: Callable[[Any], object]
    schema: Mapping[str, Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        """Let our reader alone judge the value."""
        return core_schema.no_info_plain_validator_function(self._validate)

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> dict[str, Any]:
        """Describe what the reader accepts."""
        return dict(self.schema)

    def _validate(self, value: Any) -> object:
        try:
            return self.read(value)
        except ApportionError as error:
            raise PydanticCustomError("refused", "refused", {"error": error}) from None


def whole(low: int, high: int = LARGEST_COUNT) -> Reads:
    """Read a whole number of a range; true is none, and neither is 4.0."""
    allowed = f"{low} to {high}"

    def read(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidInputError("must be a whole number", given=value, allowed=allowed)
        if not low <= value <= high:
            raise InvalidInputError("out of range", given=value, allowed=allowed)
        return value

    return Reads(read, {"type": "integer", "minimum": low, "maximum": high})


def choice(*names: str) -> Reads:
    """Read one of some words."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or value not in names:
            raise InvalidInputError("unknown", given=value, allowed=", ".join(names))
        return value

    return Reads(read, {"type": "string", "enum": list(names)})


def text(pattern: str, allowed: str, longest: int = 200) -> Reads:
    """Read text that a pattern matches from end to end."""

    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise InvalidInputError("must be text", given=value, allowed=allowed)
        if len(value) > longest or re.fullmatch(pattern, value, re.ASCII) is None:
            raise InvalidInputError("not in the right form", given=value, allowed=allowed)
        return value

    return Reads(read, {"type": "string", "pattern": f"^(?:{pattern})$", "maxLength": longest})


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidInputError("must be true or false", given=value, allowed="true, false")
    return value


def _switch(value: Any) -> str:
    # YAML 1.1 reads a bare on or off as a truth value.
    word = ("on" if value else "off") if isinstance(value, bool) else value
    if word not in ("on", "off", "passthrough"):
        raise InvalidInputError("unknown", given=value, allowed="on, off, passthrough")
    return word


def _duration(value: Any) -> timedelta:
    if not isinstance(value, str):
        raise InvalidInputError("must be a duration", given=value, allowed=DURATION_GRAMMAR)
    return parse_duration(value)


def _duration_or_none(value: Any) -> timedelta:
    if isinstance(value, str) and re.fullmatch(_ZERO, value):
        return timedelta(0)
    try:
        return _duration(value)
    except InvalidInputError as error:
        error.allowed = f"{error.allowed}, or 0s"
        raise


def _ratio(value: Any) -> Decimal:
    number = parse_number(
        value, field="ratio", allowed="a number; what lies outside 0.1 to 100 is clamped"
    )
    clamped = min(max(number, RATIO_MIN), RATIO_MAX)
    ratio = Decimal(clamped.numerator) / Decimal(clamped.denominator)
    if Fraction(ratio) != clamped:
        raise InvalidInputError(
            "has no finite decimal, so it could not be stored as given",
            given=value,
            allowed="a decimal number such as 1.5",
        )
    return ratio


def _unavailable(value: Any) -> int | str:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= LARGEST_COUNT:
        return value
    if isinstance(value, str) and re.fullmatch(_PERCENT, value, re.ASCII):
        return value
    raise InvalidInputError(
        "is neither a count nor a share",
        given=value,
        allowed='a whole number of nodes from 1, or a share of the pool from "1%" to "100%"',
    )


def _cpu_set(value: Any) -> str:
    allowed = "numbers and ascending ranges of CPUs such as 2-15,18"
    if not isinstance(value, str) or not re.fullmatch(_CPUS, value, re.ASCII):
        raise InvalidInputError("is not a set of CPUs", given=value, allowed=allowed)
    for part in value.split(","):
        low, _, high = part.partition("-")
        if high and int(high) < int(low):
            raise InvalidInputError(
                f"the range {part} runs backwards", given=value, allowed=allowed
            )
    return value


Flag: TypeAlias = Annotated[bool, Reads(_flag, {"type": "boolean"})]
Switch: TypeAlias = Annotated[
    str, Reads(_switch, {"enum": ["on", "off", "passthrough", True, False]})
]
Count: TypeAlias = Annotated[int, whole(0)]
Duration: TypeAlias = Annotated[
    timedelta, Reads(_duration, {"type": "string", "description": DURATION_GRAMMAR})
]
DurationOrNone: TypeAlias = Annotated[
    timedelta,
    Reads(_duration_or_none, {"type": "string", "description": f"{DURATION_GRAMMAR}, or 0s"}),
]
Ratio: TypeAlias = Annotated[Decimal, Reads(_ratio, _NUMBER)]
MilliCpu: TypeAlias = Annotated[int, Reads(parse_milli_cpu, _NUMBER)]
"""Virtual CPUs in thousandths."""
MemoryMib: TypeAlias = Annotated[int, Reads(parse_memory_gib, _NUMBER)]
"""GiB in MiB."""
Unavailable: TypeAlias = Annotated[
    int | str,
    Reads(
        _unavailable,
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "string", "pattern": f"^{_PERCENT}$"},
            ]
        },
    ),
]
CpuSet: TypeAlias = Annotated[str, Reads(_cpu_set, {"type": "string", "pattern": f"^{_CPUS}$"})]
ShortName: TypeAlias = Annotated[
    str,
    text(
        r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?",
        "lower-case letters and digits, with dots, dashes and underscores between them",
        63,
    ),
]
ModuleName: TypeAlias = Annotated[
    str,
    text(r"[A-Za-z0-9][A-Za-z0-9_-]*", "a kernel module's name such as nvidia_peermem", 64),
]
LabelKey: TypeAlias = Annotated[
    str,
    text(
        r"(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?",
        "a Kubernetes label's key such as example.com/tier",
        317,
    ),
]
LabelValue: TypeAlias = Annotated[
    str,
    text(
        r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?",
        "a Kubernetes label's value: up to 63 letters and digits, with . _ - between them",
        63,
    ),
]
