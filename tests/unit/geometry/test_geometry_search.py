"""What fits, where, why not, and what is lost: the cases that people meet."""

import pytest

from apportion.geometry import addable, board_by_key, place_all, stranded, why_not

A100 = board_by_key("a100-sxm4-40gb")
H100 = board_by_key("h100-sxm5-80gb")
RTX = board_by_key("rtx-pro-6000-blackwell-server")


def place(board, *names, beside=()):
    occupied = 0
    for name, start in beside:
        occupied |= next(p.mask for p in board.profile(name).placements if p.start == start)
    return place_all(board, [board.profile(name) for name in names], occupied), occupied


def starts(board, *names, beside=()):
    placed, _ = place(board, *names, beside=beside)
    return None if placed is None else [p.start for p in placed]


def test_seven_sevenths_of_an_a100_need_not_fit():
    assert starts(A100, "3g.20gb", "3g.20gb", "1g.5gb") is None
    assert starts(A100, "3g.20gb", "3g.20gb") is not None


def test_the_whole_set_is_placed_where_lowest_start_first_would_fail():
    assert starts(H100, "1g.10gb", "2g.20gb", "4g.40gb") == [6, 4, 0]
    assert starts(H100, "1g.10gb", "1g.10gb", "1g.10gb", "4g.40gb") == [4, 5, 6, 0]
    assert starts(H100, "1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb") == [0, 1, 2, 4]


def test_the_first_small_instance_leaves_room_for_the_large_ones():
    assert starts(H100, "1g.10gb") == [6]
    assert starts(H100, "3g.40gb") == [4]
    assert starts(H100, "2g.20gb") == [4]


def test_a_kind_of_instance_is_not_given_up_for_more_places_of_the_others():
    # With the OFA and slices 2 and 3 taken, 4 leaves more places than 0, and 0 leaves the 3g.
    beside = [("1g.10gb+me", 2), ("1g.10gb", 3)]
    assert starts(H100, "1g.20gb", beside=beside) == [0]
    _, occupied = place(H100, beside=beside)
    assert addable(H100, occupied | 0b11)["3g.40gb"] == 1


@pytest.mark.parametrize(("start", "four"), [(0, 0), (3, 0), (4, 1), (6, 1)])
def test_one_slice_on_the_left_kills_the_four_slice_instance(start, four):
    _, occupied = place(H100, beside=[("1g.10gb", start)])
    assert addable(H100, occupied)["4g.40gb"] == four


def test_what_can_be_added_to_an_empty_board_is_its_greatest_number():
    for board in (A100, H100, RTX):
        assert addable(board) == {p.name: p.max_instances for p in board.profiles}


def test_four_instances_of_double_memory_fit_on_an_a100_40gb_and_five_do_not():
    assert starts(A100, *["1g.10gb"] * 4) == [0, 2, 4, 6]
    assert starts(A100, *["1g.10gb"] * 5) is None
    assert why_not(A100, [A100.profile("1g.10gb")] * 5) == (
        "5 x 1g.10gb: at most 4 on NVIDIA A100-SXM4-40GB"
    )


def test_beside_all_media_engines_only_instances_without_any_fit():
    assert starts(RTX, "1g.24gb+me.all", "1g.24gb-me", "2g.48gb-me") == [0, 3, 6]
    for name in ("1g.24gb", "1g.24gb+gfx", "1g.24gb+me", "2g.48gb"):
        assert starts(RTX, "1g.24gb+me.all", name) is None


@pytest.mark.parametrize(
    ("board", "names", "reason"),
    [
        (A100, ["3g.20gb", "3g.20gb", "1g.5gb"], "9 memory slices are needed"),
        (A100, ["4g.20gb", "3g.20gb", "1g.5gb"], "8 compute slices are needed"),
        (A100, ["7g.40gb", "7g.40gb"], "2 x 7g.40gb: at most 1"),
        (RTX, ["1g.24gb+me", "2g.48gb+me.all"], "2 OFA engines are needed and 1 can be had"),
        (RTX, ["1g.24gb+me.all", "1g.24gb"], "5 media engines are needed and 4 can be had"),
    ],
)
def test_the_reason_names_what_runs_out(board, names, reason):
    assert reason in (why_not(board, [board.profile(name) for name in names]) or "")


def test_the_reason_on_a_gpu_in_use_says_so():
    _, occupied = place(H100, beside=[("1g.10gb", 0)])
    reason = why_not(H100, [H100.profile("4g.40gb")], occupied)
    assert reason == "no place for 4g.40gb on NVIDIA H100 80GB HBM3 (SXM5) beside what is there"


def test_places_that_do_not_lie_side_by_side_are_given_as_the_reason():
    # 1g at 0 and at 4: each half still has room for a 2g, none for a 3g.
    _, occupied = place(H100, beside=[("1g.10gb", 0), ("1g.10gb", 5)])
    wanted = [H100.profile(name) for name in ("2g.20gb", "1g.20gb", "1g.20gb")]
    assert "no arrangement of their legal placements" in (why_not(H100, wanted, occupied) or "")


def test_nothing_is_stranded_on_an_empty_gpu():
    lost = stranded(H100, compute_used=0)
    assert (lost.memory_slices, lost.compute_slices) == (0, 0)


def test_seven_ones_strand_the_last_memory_slice():
    placed, _ = place(H100, *["1g.10gb"] * 7)
    lost = stranded(H100, sum(p.mask for p in placed), compute_used=7)
    assert (lost.memory_mask, lost.compute_slices) == (1 << 7, 0)


def test_two_threes_strand_one_compute_slice():
    placed, _ = place(H100, "3g.40gb", "3g.40gb")
    lost = stranded(H100, sum(p.mask for p in placed), compute_used=6)
    assert (lost.memory_slices, lost.compute_slices) == (0, 1)


def test_the_worst_stranding_of_a_full_gpu_is_one_memory_and_three_compute_slices():
    _, occupied = place(
        H100, beside=[("1g.20gb", 0), ("1g.20gb", 2), ("1g.20gb", 4), ("1g.10gb", 6)]
    )
    lost = stranded(H100, occupied, compute_used=4)
    assert (lost.memory_slices, lost.compute_slices) == (1, 3)


def test_without_the_compute_in_use_the_stranded_compute_is_not_guessed():
    assert stranded(H100, 1).compute_slices is None
