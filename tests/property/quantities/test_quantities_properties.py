"""Quantities under arbitrary input: exact where accepted, one kind of error where not."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction

from hypothesis import example, given
from hypothesis import strategies as st

from apportion.errors import InvalidInputError
from apportion.quantities import units
from apportion.quantities.ids import check_id, make_id
from apportion.quantities.shares import (
    decimal_text,
    exact_text,
    format_share,
    parse_fraction,
    parse_share_of_gpus,
)
from apportion.quantities.sizes import (
    format_bytes,
    parse_memory,
    parse_memory_gib,
    parse_milli_cpu,
    parse_quantity,
)
from apportion.quantities.windows import (
    Window,
    format_duration,
    format_instant,
    parse_duration,
    parse_instant,
)

positive = st.fractions(min_value=Fraction(1, 10**9), max_value=10**9, max_denominator=10**9)
instants = st.datetimes(timezones=st.just(UTC))
near_numbers = st.text(alphabet="0123456789.eE+-/mkKMGTPiBuEn %,_x½٣ \n", max_size=12)


@given(positive)
def test_a_written_share_reads_back_as_itself(share):
    assert parse_fraction(format_share(share)) == share
    assert parse_fraction(exact_text(share)) == share


@given(st.integers(1, 10**25), st.integers(-30, 10))
def test_a_decimal_text_is_read_to_the_last_digit(digits, exponent):
    value = Decimal(digits).scaleb(exponent)
    assert parse_fraction(str(value)) == Fraction(value) == parse_fraction(value)


@given(st.floats(min_value=1e-30, max_value=1e30))
def test_a_float_means_its_shortest_repr(value: float):
    assert parse_fraction(value) == Fraction(repr(value))


@given(near_numbers)
@example("1e999999999")
@example("1/" + "0" * 30)
def test_no_text_does_anything_but_parse_or_be_refused(text):
    for parse in (
        parse_fraction,
        parse_share_of_gpus,
        parse_quantity,
        parse_memory,
        parse_milli_cpu,
        parse_memory_gib,
        parse_duration,
        lambda text: parse_instant(text, field="at"),
    ):
        refused = None
        try:
            parse(text)
        except InvalidInputError as error:
            refused = error
        assert refused is None or (refused.field and refused.allowed)


@given(positive, st.integers(0, 12))
def test_rounding_for_people_is_off_by_half_a_digit_at_most(value, places):
    assert abs(Fraction(decimal_text(value, places)) - value) <= Fraction(1, 2 * 10**places)


@given(st.integers(1, 2**63 - 1))
def test_written_bytes_read_back_as_themselves(value):
    assert parse_memory(format_bytes(value)) == value


@given(st.timedeltas(min_value=timedelta(seconds=1), max_value=timedelta(days=3653)))
def test_a_written_duration_reads_back_as_itself(duration):
    whole = timedelta(seconds=duration // timedelta(seconds=1))
    assert parse_duration(format_duration(whole)) == whole


@given(instants)
def test_a_written_instant_reads_back_as_itself(instant):
    assert parse_instant(format_instant(instant), field="at") == instant


pairs = st.lists(instants, min_size=2, max_size=2, unique=True).map(sorted)


@given(pairs, pairs, st.booleans(), st.booleans())
def test_windows_overlap_exactly_when_they_share_an_instant(one, other, first_open, second_open):
    (a, b), (c, d) = one, other
    first = Window(start=a, end=None if first_open else b)
    second = Window(start=c, end=None if second_open else d)
    # Two half-open windows that meet do so at the later of their starts.
    later = max(a, c)
    assert first.overlaps(second) == (first.contains(later) and second.contains(later))
    assert first.overlaps(second) == second.overlaps(first)
    assert not first.covers(second) or first.overlaps(second)


@given(instants.filter(lambda t: t.year >= 1970), st.binary(min_size=10, max_size=10))
def test_every_id_is_of_its_kind_and_holds_its_time(now: datetime, entropy):
    text = make_id("pool", now=now, entropy=entropy)
    assert check_id("pool", text, "id") == text
    lowest = make_id("pool", now=now, entropy=bytes(10))
    assert lowest <= text
    assert text[: len("pool_") + 10] == lowest[: len("pool_") + 10]


@given(st.sets(st.integers(0, 200)))
def test_a_unit_set_survives_the_way_to_the_database_and_back(chosen):
    mask = sum(1 << unit for unit in chosen)
    assert set(units.bits(mask)) == chosen
    assert units.from_multirange(units.to_multirange(mask)) == mask
    assert sum(high - low for low, high in units.ranges(mask)) == len(chosen)


@given(st.sets(st.integers(0, 60), min_size=1), st.data())
def test_the_lowest_units_are_a_contiguous_piece_where_there_is_one(chosen, data):
    count = data.draw(st.integers(1, len(chosen)))
    taken = set(units.bits(units.lowest(sum(1 << unit for unit in chosen), count)))
    assert len(taken) == count
    assert taken <= chosen
    has_run = any(set(range(low, low + count)) <= chosen for low in chosen)
    assert not has_run or max(taken) - min(taken) == count - 1
