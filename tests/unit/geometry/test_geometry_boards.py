"""Boards: rulers, shares and masks against the documents' own numbers."""

from fractions import Fraction

import pytest

from apportion.errors import InvalidInputError
from apportion.geometry import board_by_key, boards
from apportion.quantities.units import bits

H100 = board_by_key("h100-sxm5-80gb")
A30 = board_by_key("a30-24gb")
RTX = board_by_key("rtx-pro-6000-blackwell-server")


def starts(board, name):
    return [(p.start, p.size) for p in board.profile(name).placements]


def units(board, name, start):
    place = next(p for p in board.profile(name).placements if p.start == start)
    return [board.ruler.names[unit] for unit in bits(place.mask)]


def test_there_are_31_boards_with_219_profiles():
    assert len(boards()) == 31
    assert sum(len(board.profiles) for board in boards()) == 219


def test_a_key_that_no_board_has_is_refused():
    with pytest.raises(InvalidInputError, match="no board of that key"):
        board_by_key("a100")


def test_an_h100_is_eight_memory_slices_and_the_ofa():
    assert (H100.compute_slices, H100.memory_slices, H100.family) == (7, 8, "H100")
    assert H100.ruler.names == (*(f"memory {i}" for i in range(8)), "ofa")
    assert (H100.ruler.units, H100.ruler.memory_units) == (9, 8)


def test_an_a30_is_four_memory_slices_and_the_ofa():
    assert A30.ruler.names == ("memory 0", "memory 1", "memory 2", "memory 3", "ofa")


def test_an_rtx_pro_6000_is_twelve_units_the_ofa_and_four_media_units():
    assert RTX.ruler.units == 17
    assert RTX.ruler.names[11:] == ("memory 11", "ofa", "media 0", "media 1", "media 2", "media 3")


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("1g.10gb", [(i, 1) for i in range(7)]),
        ("1g.20gb", [(0, 2), (2, 2), (4, 2), (6, 2)]),
        ("2g.20gb", [(0, 2), (2, 2), (4, 2)]),
        ("3g.40gb", [(0, 4), (4, 4)]),
        ("4g.40gb", [(0, 4)]),
        ("7g.80gb", [(0, 8)]),
    ],
)
def test_the_placements_of_an_h100_are_those_that_hardware_reports(name, places):
    assert starts(H100, name) == places


def test_the_media_extension_takes_the_ofa_and_the_whole_gpu_takes_everything():
    assert units(H100, "1g.10gb", 3) == ["memory 3"]
    assert units(H100, "1g.10gb+me", 3) == ["memory 3", "ofa"]
    assert units(H100, "7g.80gb", 0) == list(H100.ruler.names)


def test_media_units_go_with_the_instances_own_compute_slices():
    memory = ["memory 6", "memory 7", "memory 8"]
    all_media = ["media 0", "media 1", "media 2", "media 3"]
    assert units(RTX, "1g.24gb", 6) == [*memory, "media 2"]
    assert units(RTX, "1g.24gb+gfx", 6) == [*memory, "media 2"]
    assert units(RTX, "1g.24gb+me", 6) == [*memory, "ofa", "media 2"]
    assert units(RTX, "1g.24gb+me.all", 6) == [*memory, "ofa", *all_media]
    assert units(RTX, "1g.24gb-me", 6) == memory
    assert units(RTX, "2g.48gb", 6)[-2:] == ["media 2", "media 3"]
    assert units(RTX, "4g.96gb+gfx", 0) == list(RTX.ruler.names)


def test_a_share_is_compute_slices_over_the_boards_own_count():
    assert H100.profile("3g.40gb").share == Fraction(3, 7)
    assert A30.profile("2g.12gb").share == Fraction(2, 4)
    assert RTX.profile("1g.24gb").share == Fraction(1, 4)
    assert H100.profile("3g.40gb").share + Fraction(2, 4) == Fraction(13, 14)


def test_one_name_is_another_profile_on_another_board():
    forty = board_by_key("a100-sxm4-40gb").profile("1g.10gb")
    eighty = board_by_key("a100-sxm4-80gb").profile("1g.10gb")
    assert (forty.id, forty.max_instances, forty.memory_slices) == (15, 4, 2)
    assert (eighty.id, eighty.max_instances, eighty.memory_slices) == (19, 7, 1)
    assert board_by_key("h200-sxm5-141gb").profile("1g.35gb").max_instances == 4
    assert board_by_key("gb300-278gb").profile("1g.35gb").max_instances == 7


def test_an_ampere_needs_a_reset_for_its_mode_and_a_hopper_does_not():
    ampere = board_by_key("a100-sxm4-40gb")
    assert (ampere.mode_change_needs_reset, ampere.mode_survives_reboot) == (True, True)
    assert (H100.mode_change_needs_reset, H100.mode_survives_reboot) == (False, False)


@pytest.mark.parametrize("board", boards(), ids=lambda board: board.key)
def test_boards_and_profiles_are_values_that_can_be_keys(board):
    assert len({board, *board.profiles}) == 1 + len(board.profiles)
    assert all(0 < profile.share <= 1 for profile in board.profiles)


@pytest.mark.parametrize("board", boards(), ids=lambda board: board.key)
def test_the_ofa_unit_goes_exactly_to_the_profiles_that_the_data_gives_an_ofa(board):
    for profile in board.profiles:
        for place in profile.placements:
            if profile.engines.ofa is not None:
                assert place.mask >> board.ruler.memory_units & 1 == profile.engines.ofa
