"""Selectors: what each operator means, and what is refused with which words."""

import pytest

from apportion.errors import InvalidInputError
from apportion.placement import Expression, Selector
from apportion.placement.selectors import check_expression

H100 = {"gpuModel": "H100", "migProfile": "1g.24gb+me", "vramGiB": 80, "numaNode": 0}


@pytest.mark.parametrize(
    ("key", "op", "values", "holds"),
    [
        ("gpuModel", "In", ("A100", "h100"), True),
        ("gpuModel", "In", ("A100",), False),
        ("gpuModel", "NotIn", ("h100",), False),
        ("migProfile", "In", ("1g.24gb+me",), True),
        ("migProfile", "In", ("1g.24gb",), False),
        ("migProfile", "In", ("1G.24GB+ME",), False),
        ("vramGiB", "In", ("80",), True),
        ("slot", "In", ("0",), False),
        ("slot", "NotIn", ("0",), True),
        ("numaNode", "Exists", (), True),
        ("slot", "Exists", (), False),
        ("slot", "DoesNotExist", (), True),
        ("numaNode", "DoesNotExist", (), False),
        ("vramGiB", "Gt", ("79",), True),
        ("vramGiB", "Gt", ("80",), False),
        ("vramGiB", "Lt", ("81",), True),
        ("vramGiB", "Lt", ("80",), False),
        ("numaNode", "Gt", ("-1",), True),
        ("slot", "Gt", ("0",), False),
        ("slot", "Lt", ("9",), False),
        ("gpuModel", "Gt", ("1",), False),
    ],
)
def test_an_operator_means_what_it_means_for_labels(key, op, values, holds):
    assert Expression(key, op, values).matches(H100) == holds


def test_a_selector_needs_all_and_an_empty_one_takes_everything():
    both = Selector((Expression("gpuModel", "In", ("H100",)), Expression("slot", "Exists")))
    assert not both.matches(H100)
    assert Selector().matches({})


def test_a_selector_is_parted_by_what_whole_groups_share():
    model, there = Expression("gpuModel", "In", ("H100",)), Expression("node", "In", ("n1",))
    selector = Selector((there, model))
    assert (selector.on_group, selector.on_atom) == ((model,), (there,))
    assert selector.matches_group(H100)
    assert not selector.matches(H100)


@pytest.mark.parametrize(
    ("key", "op", "values", "part"),
    [
        ("model", "In", ("H100",), "key"),
        ("gpuModel", "in", ("H100",), "op"),
        ("gpuModel", "In", (), "values"),
        ("gpuModel", "NotIn", (), "values"),
        ("numaNode", "Exists", ("1",), "values"),
        ("numaNode", "DoesNotExist", ("1",), "values"),
        ("vramGiB", "Gt", (), "values"),
        ("vramGiB", "Gt", ("1", "2"), "values"),
        ("vramGiB", "Lt", ("1.5",), "values"),
        ("vramGiB", "Lt", ("½",), "values"),
        ("vramGiB", "Lt", ("",), "values"),
    ],
)
def test_a_wrong_expression_is_refused_by_its_part(key, op, values, part):
    with pytest.raises(InvalidInputError) as refused:
        check_expression(key, op, values, field="devices[0].selector.matchExpressions[1]")
    assert refused.value.field == f"devices[0].selector.matchExpressions[1].{part}"


def test_a_right_expression_comes_back():
    assert check_expression("vramGiB", "Gt", ("40",), field="x") == Expression(
        "vramGiB", "Gt", ("40",)
    )
