"""Pictures of GPUs: boxes to scale, keys for long labels, ASCII where boxes cannot be shown."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.cli.draw import Cell, can_draw_boxes, draw_gpu, draw_spans
from apportion.quantities.units import span


def test_a_gpu_is_drawn_to_scale_with_its_free_units():
    cells = [Cell(label="3g.40gb", mask=span(4, 4)), Cell(label="1g", mask=1)]
    assert draw_gpu(8, cells, width=41) == [
        "┌────┬──────────────┬───────────────────┐",
        "│ 1g │     free     │      3g.40gb      │",
        "└────┴──────────────┴───────────────────┘",
        " 0    1    2    3    4    5    6    7",
    ]


def test_without_boxes_the_picture_is_ascii():
    lines = draw_gpu(4, [Cell(label="a", mask=0b11)], width=17, boxes=False)
    assert lines == [
        "+-------+-------+",
        "|   a   |  free |",
        "+-------+-------+",
        " 0   1   2   3",
    ]
    assert all(line.isascii() for line in lines)


def test_a_label_that_does_not_fit_gets_a_key():
    lines = draw_gpu(8, [Cell(label="1g.10gb+me", mask=1), Cell(label="2g.20gb", mask=0b110)])
    assert "│   a    │" in lines[1]
    assert lines[-1] == "  a = 1g.10gb+me"


def test_engine_units_beyond_the_drawn_ones_are_left_out():
    whole = draw_gpu(8, [Cell(label="7g.80gb", mask=span(0, 9))])
    assert whole[1].count("│") == 2


def test_pieces_of_one_holder_are_drawn_apart():
    (_, body, *_) = draw_gpu(4, [Cell(label="job", mask=0b1001)], width=41)
    assert body.count("job") == 2


def test_a_hundred_holders_of_one_unit_are_each_still_visible():
    cells = [Cell(label=f"holder {unit}", mask=1 << unit) for unit in range(100)]
    lines = draw_gpu(100, cells, width=73)
    assert lines[1].count("│") == 101
    assert lines[-1].endswith("= holder 99")
    keys = [line.split(" = ")[0].strip() for line in lines if " = " in line]
    assert len(set(keys)) == 100
    assert all(key in lines[1] for key in keys)


def test_colour_is_there_only_when_asked_for():
    cells = [Cell(label="a", mask=1)]
    assert "\x1b[" not in "".join(draw_gpu(2, cells))
    coloured = draw_gpu(2, cells, colour=True)[1]
    assert coloured.count("\x1b[0m") == 2


@given(
    units=st.integers(1, 60),
    width=st.integers(10, 120),
    cuts=st.lists(st.tuples(st.integers(0, 59), st.booleans()), max_size=12),
)
def test_every_line_of_a_picture_is_equally_wide(units, width, cuts):
    starts = sorted({0, *(cut for cut, _ in cuts if cut < units)})
    ends = [*starts[1:], units]
    cells = [
        Cell(label=f"cell {low}", mask=span(low, high - low))
        for low, high in zip(starts, ends, strict=True)
    ]
    top, body, bottom, *_ = draw_gpu(units, cells, width=width)
    assert len(top) == len(body) == len(bottom)
    assert body.count("│") == len(cells) + 1
    assert len(top) == width or len(cells) * 3 >= width - 1


def test_spans_stand_under_their_unit_numbers():
    rows = [("1g", [(0, 1), (2, 1)], "ofa"), ("2g", [(0, 2), (1, 2)], "")]
    assert draw_spans(3, rows) == [
        "     0   1   2",
        "1g  ├─┤     ├─┤   ofa",
        "2g  ├─────┤",
        "        ├─────┤",
    ]
    assert draw_spans(2, [("1g", [(1, 1)], "")], boxes=False)[1] == "1g      [=]"


@pytest.mark.parametrize(
    ("encoding", "can"), [("utf-8", True), ("ascii", False), ("latin-1", False)]
)
def test_boxes_are_drawn_where_the_encoding_holds_them(encoding, can):
    assert can_draw_boxes(io.TextIOWrapper(io.BytesIO(), encoding=encoding)) is can
