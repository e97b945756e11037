"""Whatever people type: it is read, or refused as bad input; nothing else ever comes out."""

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from apportion import geometry
from apportion.errors import ApportionError, InvalidInputError
from apportion.geometry import (
    ProfileName,
    board_by_key,
    boards,
    find_board,
    layout_name,
    parse_device_name,
    parse_layout,
    parse_profile,
    read_mig_parted,
)

WORDS = ["1g", ".", "10gb", "+", "me", "-", "all", "mixed:", "2x", "A100", "SXM4", " ", "MIG", "_"]
TEXT = st.text(max_size=40) | st.lists(st.sampled_from(WORDS), max_size=8).map("".join)
YAML = st.text(max_size=60) | st.lists(
    st.sampled_from(
        ["version: v1\n", "mig-configs:", "\n", "  a:", " - ", "{", "}", "[", "]", "devices: all"]
    ),
    max_size=12,
).map("".join)
SIGNED = st.sampled_from(["", "-"])
ATTRIBUTES = st.sets(st.sampled_from(["me", "gfx", "me.all", "x2"]), max_size=3)
EXAMPLES = settings(max_examples=150, deadline=None)


@EXAMPLES
@given(TEXT)
def test_any_text_is_read_or_refused_as_bad_input(text):
    for read in (parse_profile, parse_device_name, find_board):
        with contextlib.suppress(InvalidInputError):
            read(text)
    for key in ("h100-sxm5-80gb", "rtx-pro-6000-blackwell-server", "thor-igpu"):
        with contextlib.suppress(ApportionError):
            parse_layout(text, board_by_key(key))


@EXAMPLES
@given(YAML)
def test_any_file_is_read_or_refused_as_bad_input(text):
    with contextlib.suppress(InvalidInputError):
        read_mig_parted(text)


@given(st.integers(0, 10**9 - 1), st.integers(0, 10**9 - 1), SIGNED, ATTRIBUTES)
def test_a_profiles_name_survives_printing_and_reading(compute, gigabytes, sign, attributes):
    name = ProfileName(compute, gigabytes, frozenset(sign + a for a in attributes))
    assert parse_profile(str(name)) == name
    assert parse_profile(f"nvidia.com/mig-{name}".upper()) == name


@EXAMPLES
@given(st.data())
def test_what_is_refused_comes_with_a_nearest_that_is_not(data):
    board = data.draw(st.sampled_from([b for b in boards() if b.placements_known]))
    names = data.draw(
        st.lists(st.sampled_from([p.name for b in boards() for p in b.profiles]), min_size=1)
    )
    text = "mixed:" + "+".join(names)
    try:
        layout = parse_layout(text, board)
    except InvalidInputError as error:
        nearest = parse_layout(error.details["nearest"], board)
        assert nearest.placements
        assert nearest.counts != {name: names.count(name) for name in names}
    else:
        profiles = [board.profile(p.profile) for p in layout.placements]
        assert sorted(p.name for p in profiles) == sorted(names)
        assert parse_layout(layout_name(profiles, board), board) == layout


def test_every_public_name_is_there():
    for name in geometry.__all__:
        assert getattr(geometry, name).__name__ == name
