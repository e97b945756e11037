"""Fractional GPU hours: exact, once an attempt, the waste beside them."""

from dataclasses import replace
from fractions import Fraction

import pytest

from apportion.errors import ConflictError, InvalidInputError
from apportion.planning import (
    ClusterGpuCaps,
    FractionalAsk,
    Ledger,
    fractional_gpu_hours,
    record_of,
    select_mechanism,
)


def record(job="4711", attempt=1, seconds=7200, fraction="0.25", caps=None):
    choice = select_mechanism(FractionalAsk("JPCP", fraction), caps or ClusterGpuCaps())
    return record_of(choice, label="JPCP", job_id=job, attempt=attempt, seconds=seconds)


def test_a_quarter_of_a_gpu_for_two_hours_is_half_a_gpu_hour():
    assert fractional_gpu_hours(0.25, 7200) == Fraction(1, 2)
    assert fractional_gpu_hours("1/4", "3630") == Fraction(3630, 4 * 3600)
    assert fractional_gpu_hours("3/7", 3600) + fractional_gpu_hours("1/2", 3600) == Fraction(13, 14)
    assert fractional_gpu_hours("0.25", 0) == 0
    assert fractional_gpu_hours(0.1, 0.1) == Fraction(1, 360000)


@pytest.mark.parametrize(
    ("fraction", "seconds", "field"),
    [("0", 1, "fraction"), ("1", -1, "seconds"), ("1", "NaN", "seconds"), ("x", 1, "fraction")],
)
def test_bad_numbers_are_refused_by_name(fraction, seconds, field):
    with pytest.raises(InvalidInputError) as caught:
        fractional_gpu_hours(fraction, seconds)
    assert caught.value.field == field


def test_a_fallback_bills_the_whole_gpu_and_shows_the_waste():
    whole = record()
    assert (whole.gpu_hours, whole.wasted_hours) == (2, Fraction(3, 2))
    assert whole.isolation == "exclusive"
    shared = record(caps=ClusterGpuCaps(supports_timeslice=True))
    assert (shared.gpu_hours, shared.wasted_hours) == (Fraction(1, 2), 0)


def test_the_same_record_again_bills_nothing_twice():
    ledger = Ledger.of([record(), record(), record(attempt=2), record(job="4712")])
    assert len(ledger.records) == 3
    assert (ledger.gpu_hours, ledger.wasted_hours) == (6, Fraction(9, 2))
    assert ledger.add(record()) == ledger


def test_a_record_without_its_time_is_completed_once():
    planned = record(seconds=None)
    assert (planned.gpu_hours, planned.wasted_hours) == (0, 0)
    ledger = Ledger.of([planned, record()])
    assert ledger.gpu_hours == 2
    assert ledger.add(planned) == ledger  # planning again forgets nothing
    with pytest.raises(ConflictError, match="attempt 1"):
        ledger.add(record(seconds=7201))


def test_another_record_under_one_identity_is_a_conflict_and_changes_nothing():
    ledger = Ledger.of([record()])
    for other in (record(fraction="0.5"), replace(record(), label="other")):
        with pytest.raises(ConflictError, match="recorded already") as caught:
            ledger.add(other)
        assert caught.value.details == {"job_id": "4711", "attempt": 1}
    assert ledger == Ledger.of([record()])


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"job": ""}, "job_id"),
        ({"job": "a\n"}, "job_id"),
        ({"attempt": 0}, "attempt"),
        ({"attempt": True}, "attempt"),
        ({"seconds": "-1"}, "seconds"),
    ],
)
def test_a_record_needs_an_identity(arguments, field):
    with pytest.raises(InvalidInputError) as caught:
        record(**arguments)
    assert caught.value.field == field


def test_sums_are_exact():
    caps = ClusterGpuCaps(supports_timeslice=True)
    sevenths = [record(job=str(i), fraction="1/7", seconds=3600, caps=caps) for i in range(7)]
    assert Ledger.of(sevenths).gpu_hours == 1
