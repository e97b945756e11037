"""`apportion gpu`: the boards and one board, for people and for programs."""

import json

import pytest

from apportion.cli import main


def test_the_list_shows_every_board_and_whether_its_geometry_is_known(capsys):
    assert main(["gpu", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 32
    assert lines[1].split()[:2] == ["a100-sxm4-40gb", "A100"]
    assert lines[1].endswith("observed")
    assert sum(line.endswith("unknown") for line in lines) == 4


def test_the_list_can_be_narrowed_to_a_family_in_either_case(capsys):
    assert main(["gpu", "list", "--family", "gh200", "-o", "json"]) == 0
    boards = json.loads(capsys.readouterr().out)["gpus"]
    assert [board["key"] for board in boards] == ["gh200-96gb", "gh200-144gb"]
    assert boards[0]["placements_known"] is True


def test_an_unknown_family_is_bad_input_with_those_there_are(capsys):
    assert main(["gpu", "list", "--family", "T4"]) == 2
    error = capsys.readouterr().err
    assert "--family" in error
    assert "'T4'" in error
    assert "A100, A800" in error


def test_a_board_is_shown_with_its_profiles_and_their_places(capsys):
    assert main(["gpu", "show", "NVIDIA A100-SXM4-40GB"]) == 0
    out = capsys.readouterr().out
    assert "7 compute slices, 8 memory slices; placements: observed" in out
    assert "3g.20gb     9        3       4  19968    3/7     2" in out
    assert "2g.10gb    ├─────┤ ├─────┤ ├─────┤\n" in out
    assert "1g.5gb+me  ├─┤ ├─┤ ├─┤ ├─┤ ├─┤ ├─┤ ├─┤       ofa\n" in out


def test_a_board_for_programs_has_exact_shares_and_units(capsys):
    assert main(["gpu", "show", "a30", "-o", "json"]) == 0
    board = json.loads(capsys.readouterr().out)
    half = next(p for p in board["profiles"] if p["name"] == "2g.12gb")
    assert half["share"] == "1/2"
    assert half["placements"][1] == {"start": 2, "size": 2, "units": [2, 3]}
    assert board["ruler"][-1] == "ofa"


def test_a_board_of_unknown_geometry_says_so(capsys):
    assert main(["gpu", "show", "NVIDIA Thor"]) == 0
    assert "geometry unknown" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("model", "reason"),
    [("h100", "could be several boards"), ("T4", "no board that MIG can split"), ("", "not a")],
)
def test_a_model_that_is_not_one_board_is_bad_input(model, reason, capsys):
    assert main(["gpu", "show", model]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: MODEL: ")
    assert reason in error


@pytest.mark.parametrize("argv", [["gpu"], ["gpu", "show"], ["gpu", "list", "-o", "xml"]])
def test_bad_flags_exit_2(argv, capsys):
    assert main(argv) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_help_shows_an_example(capsys):
    for argv in (["gpu", "--help"], ["gpu", "list", "--help"], ["gpu", "show", "--help"]):
        assert main(argv) == 0
        assert "apportion gpu show" in capsys.readouterr().out
