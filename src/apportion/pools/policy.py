"""Pool policy: the fields that this version reads, their meaning and their limits.

A policy is a JSON object. Unknown fields are stored as given. Known ones are read here, once, into
exact values; a bad value names its path (``policy.replicas``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, cast

from apportion.errors import ApportionError, InvalidInputError
from apportion.quantities.shares import parse_number
from apportion.quantities.sizes import parse_memory_gib, parse_milli_cpu
from apportion.quantities.windows import parse_duration

REPLICAS_MAX: Final = 48
"""The most clients that MPS serves on one GPU."""
SHARES: Final = 100
"""Free shares are hundredths of a GPU."""
RATIO_MIN: Final = Fraction(1, 10)
RATIO_MAX: Final = Fraction(100)
PENDING_DEFAULT: Final = timedelta(hours=24)
HUGEPAGE_SIZES_MIB: Final = {"2Mi": 2, "1Gi": 1024}
_KNOWN: Final = {"maxPending", "replicas", "shares", "hostReserve", "overcommit", "hugepages"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPolicy:
    """The policy of one pool, read.

    ``max_pending`` is how long what cannot be placed may wait. ``replicas`` or ``shares`` is the
    split of time-sliced and MPS pools. ``ratios`` are overcommit ratios by resource, clamped to
    0.1..100; ``reserve_vcpu_milli`` and ``reserve_memory_mib`` are kept for the host itself;
    ``hugepages`` are configured pages by size.
    """

    max_pending: timedelta = PENDING_DEFAULT
    replicas: int | None = None
    shares: int | None = None
    ratios: Mapping[str, Decimal] = field(default_factory=dict[str, Decimal])
    reserve_vcpu_milli: int = 0
    reserve_memory_mib: int = 0
    hugepages: Mapping[str, int] = field(default_factory=dict[str, int])

    def ratio(self, resource: str) -> Decimal:
        """Return the overcommit ratio of ``vcpu`` or ``memoryGiB``; 1 where none is set."""
        return self.ratios.get(resource, Decimal(1))


def mps_units(replicas: int) -> int:
    """Return one slot's part of a GPU's 100 MPS units; what is left over is nobody's."""
    return 100 // replicas


def read_policy(policy: Mapping[str, Any], sharing: str) -> PoolPolicy:
    """Read and check a policy for a pool of this sharing mode.

    Raises InvalidInputError whose field is the JSON path of the bad value.
    """
    replicas, shares = _split(policy, sharing)
    reserve = _object(policy, "hostReserve", ("vcpu", "memoryGiB"))
    overcommit = _object(policy, "overcommit", ("vcpu", "memoryGiB"))
    hugepages = _object(policy, "hugepages", tuple(HUGEPAGE_SIZES_MIB))
    return PoolPolicy(
        max_pending=_duration(policy, "maxPending", PENDING_DEFAULT),
        replicas=replicas,
        shares=shares,
        ratios={
            key: _ratio(value, f"policy.overcommit.{key}") for key, value in overcommit.items()
        },
        reserve_vcpu_milli=_amount(reserve, "vcpu", parse_milli_cpu),
        reserve_memory_mib=_amount(reserve, "memoryGiB", parse_memory_gib),
        hugepages={
            key: _count(value, f"policy.hugepages.{key}") for key, value in hugepages.items()
        },
    )


def policy_problems(
    policy: Mapping[str, Any], sharing: str, gpu_model: str
) -> Sequence[ApportionError]:
    """Return everything that is wrong with a policy of such a pool, by itself."""
    try:
        read_policy(policy, sharing)
    except ApportionError as error:
        return [error]
    return []


def unknown_fields(policy: Mapping[str, Any]) -> list[str]:
    """Return the names of the fields that this version does not read; they are stored as given."""
    return sorted(set(policy) - _KNOWN)


def _split(policy: Mapping[str, Any], sharing: str) -> tuple[int | None, int | None]:
    replicas, shares = policy.get("replicas"), policy.get("shares")
    splits = sharing in ("timeslice", "mps")
    for name, value in (("replicas", replicas), ("shares", shares)):
        if value is not None and not splits:
            raise InvalidInputError(
                f"only timeslice and mps pools split a GPU by {name}, not {sharing} ones",
                field=f"policy.{name}",
                given=value,
            )
    if not splits:
        return None, None
    if (replicas is None) == (shares is None):
        raise InvalidInputError(
            f"a {sharing} pool needs replicas (fixed slots) or shares (hundredths), not both",
            field="policy.replicas",
            given=replicas,
            allowed=f"replicas 1 to {REPLICAS_MAX}, or shares {SHARES}",
        )
    if replicas is not None:
        count = _count(replicas, "policy.replicas")
        if not 1 <= count <= REPLICAS_MAX:
            raise InvalidInputError(
                "out of range",
                field="policy.replicas",
                given=replicas,
                allowed=f"1 to {REPLICAS_MAX}",
            )
        return count, None
    if _count(shares, "policy.shares") != SHARES:
        raise InvalidInputError("unknown split", field="policy.shares", given=shares, allowed="100")
    return None, SHARES


def _object(policy: Mapping[str, Any], name: str, keys: tuple[str, ...]) -> dict[str, Any]:
    value = policy.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidInputError("must be an object", field=f"policy.{name}", given=value)
    found = cast("dict[str, Any]", value)
    unknown = sorted(set(found) - set(keys))
    if unknown:
        raise InvalidInputError(
            "no such field",
            field=f"policy.{name}.{unknown[0]}",
            given=found[unknown[0]],
            allowed=", ".join(keys),
        )
    return found


def _duration(policy: Mapping[str, Any], name: str, default: timedelta) -> timedelta:
    value = policy.get(name)
    if value is None:
        return default
    if not isinstance(value, str):
        raise InvalidInputError(
            "must be a duration", field=f"policy.{name}", given=value, allowed='text such as "6h"'
        )
    return parse_duration(value, field=f"policy.{name}")


def _ratio(value: Any, field_name: str) -> Decimal:
    number = parse_number(
        value, field=field_name, allowed="a number; what lies outside 0.1 to 100 is clamped"
    )
    clamped = min(max(number, RATIO_MIN), RATIO_MAX)
    ratio = Decimal(clamped.numerator) / Decimal(clamped.denominator)
    if Fraction(ratio) != clamped:
        raise InvalidInputError(
            "has no finite decimal, so it could not be stored as given",
            field=field_name,
            given=value,
        )
    return ratio


def _count(value: Any, field_name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
        raise InvalidInputError(
            "must be a whole number", field=field_name, given=value, allowed="0 to 2147483647"
        )
    return value


def _amount(values: Mapping[str, Any], key: str, read: Callable[..., int]) -> int:
    value = values.get(key)
    return 0 if value is None else read(value, field=f"policy.hostReserve.{key}")
