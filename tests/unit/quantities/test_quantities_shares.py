"""The one grammar of fractions, with the values that other systems got wrong."""

from decimal import Decimal
from fractions import Fraction

import pytest

from apportion.errors import InvalidInputError
from apportion.quantities.shares import (
    decimal_text,
    exact_text,
    format_share,
    parse_fraction,
    parse_share_of_gpus,
    percent_text,
)


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ("0.5", Fraction(1, 2)),
        (".5", Fraction(1, 2)),
        ("1/2", Fraction(1, 2)),
        ("500m", Fraction(1, 2)),
        ("1e-1", Fraction(1, 10)),
        ("1E-1", Fraction(1, 10)),
        ("1/7", Fraction(1, 7)),
        ("0.142857", Fraction(142857, 1000000)),
        ("0.0000001", Fraction(1, 10**7)),
        ("1", Fraction(1)),
        (1, Fraction(1)),
        (0.1, Fraction(1, 10)),
        (1e-7, Fraction(1, 10**7)),
        (Decimal("0.2"), Fraction(1, 5)),
        (Fraction(3, 7), Fraction(3, 7)),
    ],
)
def test_a_number_of_the_grammar_is_read_exactly(given, value):
    assert parse_fraction(given) == value


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("", "is empty"),
        ("0", "greater than 0"),
        ("0.0", "greater than 0"),
        ("0/3", "greater than 0"),
        ("0m", "greater than 0"),
        (0, "greater than 0"),
        (0.0, "greater than 0"),
        ("-0.1", "greater than 0"),
        (-0.1, "greater than 0"),
        (Fraction(-1, 7), "greater than 0"),
        ("NaN", "finite"),
        ("nan", "finite"),
        ("inf", "finite"),
        ("-inf", "finite"),
        (float("nan"), "finite"),
        (float("inf"), "finite"),
        (Decimal("sNaN"), "finite"),
        (" 0.5", "spaces"),
        ("0.5 ", "spaces"),
        ("0.5\n", "spaces"),
        ("1 / 2", "spaces"),
        ("50%", "percentage"),
        ("0,5", "decimal comma"),
        ("1/0", "denominator of 0"),
        ("½", "grammar"),
        ("\u0660.\u0665", "grammar"),
        ("1_0", "grammar"),
        ("0x1p-1", "grammar"),
        ("+0.5", "grammar"),
        ("5.", "grammar"),
        ("1.5m", "grammar"),
        ("1e", "grammar"),
        ("1e-100", "grammar"),
        ("1e-999999999", "grammar"),
        ("0.5.5", "grammar"),
        ("1/2/3", "grammar"),
        ("9" * 41, "longer than 40"),
        (Decimal("1e-999999999"), "grammar"),
        (True, "not a number"),
        (None, "not a number"),
        (b"0.5", "not a number"),
    ],
)
def test_anything_else_is_refused_with_the_reason(given, reason):
    with pytest.raises(InvalidInputError, match=reason) as caught:
        parse_fraction(given, field="share")
    assert caught.value.field == "share"
    assert caught.value.allowed
    assert "share:" in str(caught.value)


def test_a_number_too_long_to_write_is_refused_and_not_echoed():
    for huge in (10**5000, Fraction(1, 10**5000)):
        with pytest.raises(InvalidInputError, match="longer than 40") as caught:
            parse_fraction(huge)
        assert len(str(caught.value)) < 300


def test_a_tenth_and_a_fifth_fill_a_quota_of_three_tenths():
    assert parse_fraction(0.1) + parse_fraction(0.2) == parse_fraction("0.3")
    assert sum(parse_fraction("0.1") for _ in range(10)) == 1
    assert sum(parse_fraction("1/7") for _ in range(7)) == 1


def test_above_one_gpu_the_number_must_be_whole():
    assert parse_share_of_gpus("2") == 2
    assert parse_share_of_gpus("2.0") == 2
    with pytest.raises(InvalidInputError, match="above 1 must be whole") as caught:
        parse_share_of_gpus("5.3333")
    assert caught.value.hint == "Ask for 5 or 6 whole GPUs"


def test_numbers_are_written_for_programs_and_for_people():
    share = Fraction(13, 14)
    assert format_share(share) == "13/14"
    assert format_share(Fraction(1)) == "1"
    assert decimal_text(share) == "0.928571"
    assert decimal_text(Fraction(1), 2) == "1.00"
    assert decimal_text(Fraction(5, 2), 0) == "2"  # half to even
    assert decimal_text(Fraction(-1, 3), 2) == "-0.33"
    assert exact_text(Fraction(1, 4)) == "0.25"
    assert exact_text(Fraction(2)) == "2"
    assert exact_text(Fraction(10)) == "10"
    assert exact_text(Fraction(2, 7)) == "2/7"
    assert percent_text(Fraction(3, 4)) == "75%"
    assert percent_text(Fraction(6, 7)) == "85.71%"
