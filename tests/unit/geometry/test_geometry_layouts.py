"""Layouts by name: which are one, which can exist, and what comes nearest to one that cannot."""

import pytest

from apportion.errors import InvalidInputError, InvalidStateError
from apportion.geometry import board_by_key, boards, layout_name, parse_layout

A100 = board_by_key("a100-sxm4-40gb")
H100 = board_by_key("h100-sxm5-80gb")
A30 = board_by_key("a30-24gb")
RTX = board_by_key("rtx-pro-6000-blackwell-server")
THOR = board_by_key("thor-igpu")


def places(layout):
    return [(p.profile, p.start) for p in layout.placements]


def test_disabled_is_off_and_enabled_is_on_without_instances():
    for board in (H100, THOR):
        off, on = parse_layout("all-disabled", board), parse_layout("all-enabled", board)
        assert (off.mig_enabled, off.placements) == (False, ())
        assert (on.mig_enabled, on.placements) == (True, ())
        assert off != on


def test_all_of_a_profile_is_as_many_as_the_board_can_hold():
    assert parse_layout("all-1g.10gb", H100).counts == {"1g.10gb": 7}
    assert parse_layout("all-1g.10gb", A100).counts == {"1g.10gb": 4}
    assert parse_layout("all-1g.24gb", RTX).counts == {"1g.24gb": 4}
    assert parse_layout("all-1g.10gb.me", H100).counts == {"1g.10gb+me": 1}
    assert parse_layout("all-1g.24gb-me", RTX).counts == {"1g.24gb-me": 4}


@pytest.mark.parametrize("board", boards(), ids=lambda board: board.key)
def test_all_of_each_profile_is_the_greatest_number_that_the_data_gives(board):
    for profile in board.profiles if board.placements_known else ():
        layout = parse_layout(f"all-{profile.name}", board)
        assert layout.counts == {profile.name: profile.max_instances}


def test_balanced_is_one_of_each_size_and_two_of_the_smallest():
    assert parse_layout("all-balanced", H100).counts == {"3g.40gb": 1, "2g.20gb": 1, "1g.10gb": 2}
    assert parse_layout("all-balanced", A100).counts == {"3g.20gb": 1, "2g.10gb": 1, "1g.5gb": 2}
    assert parse_layout("all-balanced", A30).counts == {"2g.12gb": 1, "1g.6gb": 2}
    assert parse_layout("all-balanced", RTX).counts == {"2g.48gb": 1, "1g.24gb": 2}


def test_a_mixed_layout_gets_a_place_for_each_instance():
    layout = parse_layout("mixed:3g.40gb+2x2g.20gb", H100)
    assert layout.mig_enabled
    assert places(layout) == [("2g.20gb", 0), ("2g.20gb", 2), ("3g.40gb", 4)]
    assert layout.mask == 0b1111_1111


def test_a_plus_before_a_letter_belongs_to_the_profile():
    layout = parse_layout("mixed:1g.24gb+me.all+3x1g.24gb-me", RTX)
    assert layout.counts == {"1g.24gb+me.all": 1, "1g.24gb-me": 3}
    assert parse_layout("mixed:2x1g.24gb+gfx+2g.48gb", RTX).counts == {
        "2g.48gb": 1,
        "1g.24gb+gfx": 2,
    }


def test_equal_cuts_are_equal_whatever_they_are_called():
    assert parse_layout("mixed:3g.40gb+2g.20gb+2x1g.10gb", H100) == parse_layout(
        "ALL-BALANCED", H100
    )
    assert parse_layout("mixed:2g.20gb+2g.20gb", H100) == parse_layout("mixed:2x2g.20gb", H100)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "all",
        "all-",
        "all-foo",
        "balanced",
        "mixed",
        "mixed:",
        "mixed:+1g.5gb",
        "mixed:1g.5gb+",
        "mixed:1g.5gb++1g.5gb",
        "mixed:0x1g.5gb",
        "mixed:-1x1g.5gb",
        "mixed:1.5x1g.5gb",
        "mixed:1000x1g.5gb",
        "mixed:2 x 1g.5gb",
        "mixed:1g.5gb,1g.5gb",
        "all-1g.5gb+1g.5gb",
        "all-1c.3g.20gb",
        " all-balanced",
    ],
)
def test_what_is_no_layout_is_refused_as_that(text):
    with pytest.raises(InvalidInputError, match="not a layout") as caught:
        parse_layout(text, A100, field="policy.migLayout")
    assert caught.value.field == "policy.migLayout"
    assert caught.value.given == text
    assert caught.value.details["reason"] == "not_a_layout"
    assert "mixed:[Nx]PROFILE" in str(caught.value)


@pytest.mark.parametrize(
    ("board", "text", "reason", "nearest"),
    [
        (A100, "mixed:2x3g.20gb+1g.5gb", "9 memory slices", "all-3g.20gb"),
        (A100, "mixed:5x1g.10gb", "at most 4", "all-1g.10gb"),
        (A100, "mixed:2x4g.20gb", "at most 1", "mixed:4g.20gb+3g.20gb"),
        (A100, "mixed:4g.20gb+3g.20gb+1g.5gb", "8 compute", "mixed:4g.20gb+3g.20gb"),
        (A100, "mixed:2x7g.40gb", "at most 1", "all-7g.40gb"),
        (A100, "mixed:3g.40gb+2x2g.20gb", "no profile 3g.40gb", "mixed:3g.20gb+2x2g.10gb"),
        (A100, "all-1g.24gb", "no profile 1g.24gb", "all-1g.10gb"),
        (A100, "mixed:2x1g.5gb+me", "at most 1", "all-1g.5gb+me"),
        (A30, "mixed:1g.6gb+me+2g.12gb+me", "2 OFA engines", "all-2g.12gb+me"),
        (RTX, "mixed:1g.24gb+me.all+1g.24gb", "5 media engines", "all-1g.24gb+me.all"),
        (A100, "mixed:2g.20gb+2g.24gb+1g.5gb", "no profile 2g.20gb", "mixed:2x2g.10gb+1g.5gb"),
        (RTX, "mixed:2x2g.48gb+me.all", "at most 1", "all-2g.48gb+me.all"),
        (H100, "mixed:999x1g.10gb", "at most 7", "all-1g.10gb"),
    ],
)
def test_an_impossible_layout_gives_the_reason_and_the_nearest_possible(
    board, text, reason, nearest
):
    with pytest.raises(InvalidInputError) as caught:
        parse_layout(text, board)
    assert caught.value.details["reason"] == "impossible_layout"
    assert reason in caught.value.message
    assert caught.value.details["nearest"] == nearest
    assert nearest in str(caught.value)
    assert parse_layout(nearest, board).placements


def test_the_profiles_that_a_board_lacks_are_named():
    with pytest.raises(InvalidInputError) as caught:
        parse_layout("mixed:3g.40gb+2x2g.20gb+1g.5gb", A100)
    assert caught.value.details["absent"] == ["3g.40gb", "2g.20gb"]


def test_a_board_of_unknown_geometry_has_no_layout_with_instances():
    for text in ("all-1g.0gb", "all-balanced", "mixed:1g.0gb+2g.0gb"):
        with pytest.raises(InvalidStateError, match="geometry unknown"):
            parse_layout(text, THOR)


def test_a_layout_gets_the_shortest_name_that_says_it():
    assert layout_name([], H100) == "all-enabled"
    assert layout_name([H100.profile("1g.10gb")] * 7, H100) == "all-1g.10gb"
    names = ["1g.10gb", "3g.40gb", "1g.10gb"]
    assert layout_name([H100.profile(n) for n in names], H100) == "mixed:3g.40gb+2x1g.10gb"
