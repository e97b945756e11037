"""Fractional GPU hours: each attempt of a job once, exact, with the waste beside it. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from apportion.errors import ConflictError, InvalidInputError
from apportion.planning.isolation import Isolation, Mechanism
from apportion.planning.mechanisms import MechanismChoice
from apportion.quantities.shares import Number, parse_fraction, parse_number

SECONDS_GRAMMAR: Final = "a number of seconds, 0 or more, such as 7200 or 0.5"

_LONGEST_ID = 200


def fractional_gpu_hours(fraction: Number, seconds: Number) -> Fraction:
    """Give fraction x wall hours, exact: 0.25 of a GPU for 7200 seconds is 1/2.

    ``fraction`` is greater than 0 (above 1 for several GPUs), ``seconds`` 0 or more; both as
    `parse_fraction` reads numbers. Raises InvalidInputError that names the argument.
    """
    hours = parse_number(seconds, field="seconds", allowed=SECONDS_GRAMMAR) / 3600
    return parse_fraction(fraction) * hours


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRecord:
    """What one attempt of one job was given; ``seconds`` None until it is known how long it ran.

    ``requested`` and ``allocated`` are fractions of one GPU (n for n whole ones).
    """

    job_id: str
    attempt: int
    label: str
    mechanism: Mechanism
    requested: Fraction
    allocated: Fraction
    seconds: Fraction | None = None

    def __post_init__(self) -> None:
        """Refuse an identity that could not be found again; raises InvalidInputError."""
        for name, text in (("job_id", self.job_id), ("label", self.label)):
            if not 0 < len(text) <= _LONGEST_ID or not text.isprintable():
                raise InvalidInputError(
                    "is no name",
                    field=name,
                    given=text[:60],
                    allowed=f"1 to {_LONGEST_ID} printable characters",
                )
        if isinstance(self.attempt, bool) or not 1 <= self.attempt <= 10**9:
            raise InvalidInputError(
                "is out of range", field="attempt", given=self.attempt, allowed="1 to 1000000000"
            )

    @property
    def key(self) -> tuple[str, int]:
        """Give the identity: a job that is tried again is another record."""
        return self.job_id, self.attempt

    @property
    def isolation(self) -> Isolation:
        """Give what stood between the job and others."""
        return self.mechanism.isolation

    @property
    def gpu_hours(self) -> Fraction:
        """Give the exact hours of a GPU that were allocated; 0 while the time is not known."""
        return self.allocated * (self.seconds or 0) / 3600

    @property
    def wasted_hours(self) -> Fraction:
        """Give the part of `gpu_hours` that nobody asked for."""
        return max(Fraction(0), self.allocated - self.requested) * (self.seconds or 0) / 3600


def record_of(
    choice: MechanismChoice,
    *,
    label: str,
    job_id: str,
    attempt: int = 1,
    seconds: Number | None = None,
) -> UsageRecord:
    """Make the record of a choice; raises InvalidInputError that names the argument."""
    return UsageRecord(
        job_id=job_id,
        attempt=attempt,
        label=label,
        mechanism=choice.mechanism,
        requested=choice.requested_fraction,
        allocated=choice.allocated_fraction,
        seconds=None
        if seconds is None
        else parse_number(seconds, field="seconds", allowed=SECONDS_GRAMMAR),
    )


@dataclass(frozen=True, slots=True)
class Ledger:
    """The records, each (job id, attempt) once, in the order in which they came."""

    records: Mapping[tuple[str, int], UsageRecord]

    @classmethod
    def of(cls, records: Iterable[UsageRecord]) -> "Ledger":
        """Collect records by the rule of `add`."""
        merged: dict[tuple[str, int], UsageRecord] = {}
        for record in records:
            merged[record.key] = _settled(merged.get(record.key), record)
        return cls(merged)

    def add(self, record: UsageRecord) -> "Ledger":
        """Return a ledger with the record in it.

        The same record again changes nothing, so that a retry bills nothing twice. A record whose
        time was not known is completed by one that knows it; anything else under the same identity
        is ConflictError.
        """
        settled = _settled(self.records.get(record.key), record)
        return Ledger({**self.records, record.key: settled})

    @property
    def gpu_hours(self) -> Fraction:
        """Give the exact sum of what was allocated."""
        return sum((record.gpu_hours for record in self.records.values()), Fraction(0))

    @property
    def wasted_hours(self) -> Fraction:
        """Give the exact sum of what was allocated and not asked for."""
        return sum((record.wasted_hours for record in self.records.values()), Fraction(0))


def _settled(old: UsageRecord | None, new: UsageRecord) -> UsageRecord:
    """Give what stands under one identity after a further record of it."""
    if old is None or old == new:
        return new
    if _untimed(old) == _untimed(new) and None in (old.seconds, new.seconds):
        return new if old.seconds is None else old
    raise ConflictError(
        "is recorded already, and differently",
        field=f"job {new.job_id!r}, attempt {new.attempt}",
        hint="Each attempt of a job is recorded once; count another attempt up",
        details={"job_id": new.job_id, "attempt": new.attempt},
    )


def _untimed(record: UsageRecord) -> tuple[object, ...]:
    return record.key, record.label, record.mechanism, record.requested, record.allocated
