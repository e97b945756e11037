"""Amounts of memory, Kubernetes quantities and host resources, exact. Pure.

Three grammars that must not be mixed up: `parse_quantity` reads what Kubernetes writes (``13Gi``,
``937500k``, ``644245094400m``, where ``K`` and ``GB`` are errors); `parse_memory` reads what people
ask for (``20GB``, ``20Gi``), always with a unit, because a bare ``20`` has been read as bytes, MiB
and GiB by different tools; `parse_milli_cpu` and `parse_memory_gib` read host resources, whose unit
is in the field's name.
"""

import math
import re
from fractions import Fraction
from typing import Final

from apportion.errors import InvalidInputError
from apportion.quantities.shares import Number, decimal_text, exact_text, parse_number

MEMORY_GRAMMAR: Final = "an amount with a unit such as 20Gi, 20GiB, 20GB, 20G or 20480Mi"
QUANTITY_GRAMMAR: Final = "a Kubernetes quantity such as 13Gi, 937500k, 129e6, 0.2Gi or 500m"
LARGEST: Final = 2**63 - 1

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_SMALL = {"n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000)}
_SCALES: dict[str, int | Fraction] = {"": 1, **_BINARY, **_DECIMAL, **_SMALL}

_QUANTITY = (
    r"([+-]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40}))"
    r"(?:[eE]([+-]?[0-9]{1,3})|([KMGTPE]i|[numkMGTPE])?)"
)
_MEMORY = r"([0-9]{1,40}(?:\.[0-9]{1,40})?|\.[0-9]{1,40})((?:[KMGTPE]i|[kMGTPE])?B?)"

_LARGEST_VCPU = 10**6
_LARGEST_GIB = 2**20


def parse_quantity(text: str, *, field: str = "quantity") -> Fraction:
    """Read a Kubernetes quantity exactly as its API defines one; may be 0 or negative.

    ``E`` alone is exa, ``E`` and digits an exponent. Raises InvalidInputError for anything else,
    and beyond 2**63 - 1, where Kubernetes would silently store that limit instead.
    """
    match = re.fullmatch(_QUANTITY, text)
    if match is None:
        raise InvalidInputError(
            "is not a Kubernetes quantity", field=field, given=text[:60], allowed=QUANTITY_GRAMMAR
        )
    number, exponent, suffix = match.groups()
    if exponent is not None:
        value = Fraction(number.rstrip(".") or "0") * Fraction(10) ** int(exponent)
    else:
        value = Fraction(number.rstrip(".")) * _SCALES[suffix or ""]
    if abs(value) > LARGEST:
        raise InvalidInputError(
            "is larger than Kubernetes can hold", field=field, given=text, allowed="up to 2**63 - 1"
        )
    return value


def parse_memory(text: str, *, field: str = "memory") -> int:
    """Read an amount of memory that somebody asks for, in bytes (1 to 2**63 - 1).

    ``Gi`` and ``GiB`` are powers of 1024, ``G`` and ``GB`` powers of 1000. An ask means "at least
    this much", so a part of a byte (0.3Gi) is rounded up to the next whole one.
    """
    match = re.fullmatch(_MEMORY, text)
    if match is None or match[2] == "":
        raise InvalidInputError(
            _why_no_memory(text), field=field, given=text[:60], allowed=MEMORY_GRAMMAR
        )
    value = math.ceil(Fraction(match[1]) * _SCALES[match[2].removesuffix("B")])
    if not 1 <= value <= LARGEST:
        raise InvalidInputError(
            "is out of range", field=field, given=text, allowed="1B up to 2**63 - 1 bytes"
        )
    return value


def format_bytes(value: int) -> str:
    """Write an amount exactly, in the largest binary unit that divides it: ``20GiB``, ``1B``."""
    for unit, scale in reversed(_BINARY.items()):
        if value and value % scale == 0:
            return f"{value // scale}{unit}B"
    return f"{value}B"


def format_mib(mib: int) -> str:
    """Write an amount that is counted in MiB, as `format_bytes` does."""
    return format_bytes(mib * 2**20)


def parse_milli_cpu(value: Number, *, field: str = "vcpu") -> int:
    """Read virtual CPUs (``4``, ``"0.5"``, ``"250m"``) as thousandths; finer is refused."""
    cpus = parse_number(value, field=field, allowed="a number of virtual CPUs such as 4 or 0.5")
    milli = cpus * 1000
    if cpus > _LARGEST_VCPU:
        raise InvalidInputError("is too large", field=field, given=value, allowed="0 to 1000000")
    if milli.denominator != 1:
        low = milli.numerator // milli.denominator
        nearest = f"{exact_text(Fraction(low, 1000))} or {exact_text(Fraction(low + 1, 1000))}"
        raise InvalidInputError(
            "is finer than 1/1000 of a virtual CPU", field=field, given=value, allowed=nearest
        )
    return int(milli)


def parse_memory_gib(value: Number, *, field: str = "memoryGiB") -> int:
    """Read GiB of host memory (``64``, ``"0.5"``) as MiB; finer than 1 MiB is refused."""
    gib = parse_number(value, field=field, allowed="a number of GiB such as 64 or 0.5")
    mib = gib * 1024
    if gib > _LARGEST_GIB:
        raise InvalidInputError("is too large", field=field, given=value, allowed="0 to 1048576")
    if mib.denominator != 1:
        low = mib.numerator // mib.denominator
        nearest = f"{_gib_text(low)} or {_gib_text(low + 1)} ({low} or {low + 1} MiB)"
        raise InvalidInputError(
            "is finer than 1 MiB (1/1024 GiB)", field=field, given=value, allowed=nearest
        )
    return int(mib)


def _gib_text(mib: int) -> str:
    """Write MiB as GiB without loss: a 1024th has ten decimals."""
    return decimal_text(Fraction(mib, 1024), 10).rstrip("0").rstrip(".")


def _why_no_memory(text: str) -> str:
    """Say why a text is no amount of memory: the commonest slips by name."""
    if re.fullmatch(_MEMORY, text):
        return "needs a unit"
    if re.fullmatch(_MEMORY, text, re.IGNORECASE | re.ASCII):
        return "has a unit in the wrong case (M is mega, m is milli)"
    return "is not an amount of memory"
