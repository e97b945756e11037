"""The selector of the command line: the words of kubectl, as matchExpressions."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.cli.selecting import parse_selector
from apportion.errors import InvalidInputError


def parsed(text: str) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(e.key, e.op, e.values) for e in parse_selector(text, field="--select")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("numaNode=0", ("numaNode", "In", ("0",))),
        ("numaNode==0", ("numaNode", "In", ("0",))),
        ("numaNode != 0", ("numaNode", "NotIn", ("0",))),
        ("node in (n1, n2)", ("node", "In", ("n1", "n2"))),
        ("node notin (n1)", ("node", "NotIn", ("n1",))),
        ("vramGiB>40", ("vramGiB", "Gt", ("40",))),
        ("vramGiB < 80", ("vramGiB", "Lt", ("80",))),
        ("migProfile", ("migProfile", "Exists", ())),
        ("!migProfile", ("migProfile", "DoesNotExist", ())),
        (
            "gpuProduct=NVIDIA H100 80GB HBM3",
            ("gpuProduct", "In", ("NVIDIA H100 80GB HBM3",)),
        ),
        ("migProfile in (1g.10gb+me,1g.10gb)", ("migProfile", "In", ("1g.10gb+me", "1g.10gb"))),
    ],
)
def test_each_condition_is_the_expression_that_it_says(text, expected):
    assert parsed(text) == [expected]


def test_conditions_with_commas_between_all_have_to_hold():
    assert parsed("numaNode=0,node in (a,b) , !slots") == [
        ("numaNode", "In", ("0",)),
        ("node", "In", ("a", "b")),
        ("slots", "DoesNotExist", ()),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no condition"),
        ("numaNode=", "empty value"),
        ("numaNode=0,", "no condition"),
        ("node in ()", "empty value"),
        ("node in (a,,b)", "empty value"),
        ("node in a", "no condition"),
        ("node in (a", "no condition"),
        ("=0", "no condition"),
        ("numaNode=>0", "no condition"),
        ("vramGiB>many", "whole number"),
        ("vramGiB>", "empty value"),
        ("colour=red", "no such"),
        ("numaNode ~ 0", "no condition"),
    ],
)
def test_what_is_no_condition_is_refused_by_the_flag(text, said):
    with pytest.raises(InvalidInputError) as caught:
        parse_selector(text, field="--select")
    assert (caught.value.field or "").startswith("--select")
    assert said in str(caught.value) or "no atom has such" in str(caught.value)


@given(st.text(alphabet="ab!=<>(), in:;'\"0é", max_size=30))
def test_any_text_is_read_or_refused_and_nothing_else(text):
    with contextlib.suppress(InvalidInputError):
        assert parse_selector(text, field="--select")
