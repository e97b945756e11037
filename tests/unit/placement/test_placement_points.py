"""Counting pairs of numbers, against counting each."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from apportion.placement.points import Points

numbers = st.integers(0, 12)


@given(
    st.lists(st.tuples(numbers, numbers), max_size=60),
    st.sets(st.integers(0, 59)),
    st.integers(2, 5),
)
def test_points_are_counted_as_if_each_were_looked_at(pairs, gone, block):
    kept = Points(block)
    for number, (x, y) in enumerate(pairs):
        kept.add(x, y, number)
    for number in gone & set(range(len(pairs))):
        kept.remove(*pairs[number], number)
    left = [pair for number, pair in enumerate(pairs) if number not in gone]
    for x, y in product(range(14), repeat=2):
        assert kept.at_least(x, y) == sum(a >= x and b >= y for a, b in left)
