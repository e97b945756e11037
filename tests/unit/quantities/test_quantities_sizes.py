"""Kubernetes quantities row by row, memory asks with their units, host resources to their grain."""

from fractions import Fraction

import pytest

from apportion.errors import InvalidInputError
from apportion.quantities.sizes import (
    format_bytes,
    format_mib,
    parse_memory,
    parse_memory_gib,
    parse_milli_cpu,
    parse_quantity,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("13Gi", 13958643712),
        ("937500k", 937500000),
        ("131072k", 131072000),
        ("4Ti", 4398046511104),
        ("8589934592", 8589934592),
        ("129e6", 129000000),
        ("129E6", 129000000),
        ("0.2Gi", Fraction(2147483648, 10)),
        ("3060164198400m", Fraction(30601641984, 10)),
        ("644245094400m", Fraction(6442450944, 10)),
        ("1k", 1000),
        ("500m", Fraction(1, 2)),
        ("11m", Fraction(11, 1000)),
        ("1E", 10**18),
        ("1e+3", 1000),
        ("1E-3", Fraction(1, 1000)),
        ("7n", Fraction(7, 10**9)),
        ("7u", Fraction(7, 10**6)),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("-1", -1),
        ("+1", 1),
        ("0", 0),
    ],
)
def test_a_kubernetes_quantity_is_read_exactly(text, value):
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "1b",
        "13GB",
        "13 Gi",
        "Gi",
        "1.5.2Gi",
        "0x10",
        "NaN",
        "inf",
        "",
        "1kI",
        "1_000",
        "1K",
        "13gi",
        " 1",
        "1\n",
        "1e",
        "1e5k",
        "1e-9999",
        "٣",
        ".",
    ],
)
def test_what_kubernetes_refuses_is_refused(text):
    with pytest.raises(InvalidInputError, match="quantity") as caught:
        parse_quantity(text, field="capacity.memory")
    assert caught.value.field == "capacity.memory"


@pytest.mark.parametrize("text", ["9223372036854775808", "1e99", "16Ei", "-16Ei"])
def test_what_kubernetes_would_cap_in_silence_is_refused(text):
    with pytest.raises(InvalidInputError, match="larger than Kubernetes can hold"):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("20Gi", 20 * 2**30),
        ("20GiB", 20 * 2**30),
        ("20480Mi", 20 * 2**30),
        ("20GB", 20 * 10**9),
        ("20G", 20 * 10**9),
        ("0.5Gi", 2**29),
        ("1B", 1),
        ("0.3Gi", 322122548),  # 322122547.2: an ask is at least that much
    ],
)
def test_an_amount_of_memory_is_read_in_bytes(text, value):
    assert parse_memory(text) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("20", "needs a unit"),
        ("20gb", "wrong case"),
        ("2000mb", "wrong case"),
        ("20m", "wrong case"),
        ("20Gb", "wrong case"),
        ("", "not an amount"),
        ("-1Gi", "not an amount"),
        ("20 Gi", "not an amount"),
        ("٢Gi", "not an amount"),
        ("1e3Gi", "not an amount"),
        ("0Gi", "out of range"),
        ("9" * 40 + "Ei", "out of range"),
    ],
)
def test_a_bad_amount_of_memory_is_refused_with_the_reason(text, reason):
    with pytest.raises(InvalidInputError, match=reason) as caught:
        parse_memory(text)
    assert caught.value.field == "memory"


def test_bytes_are_written_in_the_largest_unit_that_divides_them():
    assert format_bytes(20 * 2**30) == "20GiB"
    assert format_bytes(20 * 10**9) == "19531250KiB"
    assert format_bytes(2**30 + 1) == "1073741825B"
    assert format_bytes(0) == "0B"
    assert format_mib(20224) == "20224MiB"
    assert format_mib(81920) == "80GiB"


def test_virtual_cpus_are_thousandths():
    assert parse_milli_cpu(4) == 4000
    assert parse_milli_cpu("0.5") == 500
    assert parse_milli_cpu("250m") == 250
    assert parse_milli_cpu(0.001) == 1
    assert parse_milli_cpu(0) == 0
    with pytest.raises(InvalidInputError, match="finer than 1/1000") as caught:
        parse_milli_cpu("0.0015")
    assert caught.value.allowed == "0.001 or 0.002"
    with pytest.raises(InvalidInputError, match="too large"):
        parse_milli_cpu(1_000_001)
    with pytest.raises(InvalidInputError, match="vcpu: is not a number"):
        parse_milli_cpu(True)


def test_host_memory_is_whole_mib():
    assert parse_memory_gib(64) == 65536
    assert parse_memory_gib("0.5") == 512
    assert parse_memory_gib("0.0009765625") == 1
    with pytest.raises(InvalidInputError, match="finer than 1 MiB") as caught:
        parse_memory_gib("0.3")
    assert caught.value.allowed == "0.2998046875 or 0.30078125 (307 or 308 MiB)"
    with pytest.raises(InvalidInputError, match="too large"):
        parse_memory_gib(2**20 + 1)
