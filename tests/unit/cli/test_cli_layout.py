"""`apportion layout check`: possible 0, impossible 1 with reason and nearest, bad input 2."""

import json
import subprocess
import sys

import pytest
import yaml

from apportion.cli import main

FILE = """\
version: v1
mig-configs:
  sevenths:
    - devices: all
      mig-enabled: true
      mig-devices: {1g.10gb: 7}
  off:
    - devices: [0, 1]
      mig-enabled: false
"""
BAD = (
    FILE
    + """\
  wrong:
    - devices: all
      mig-enabled: true
      mig-devices: {2g.20gb: 2, 3g.20gb: 1}
"""
)


def check(*argv):
    return main(["layout", "check", *argv])


def test_a_possible_layout_is_drawn(capsys):
    assert check("all-balanced", "--gpu-model", "H100-SXM5-80GB") == 0
    assert capsys.readouterr().out.splitlines() == [
        "all-balanced on NVIDIA H100 80GB HBM3 (SXM5): possible",
        "┌─────────────────┬────────┬────────┬───────────────────────────────────┐",
        "│     2g.20gb     │1g.10gb │1g.10gb │              3g.40gb              │",
        "└─────────────────┴────────┴────────┴───────────────────────────────────┘",
        " 0        1        2        3        4        5        6        7",
    ]


def test_an_impossible_layout_says_why_and_draws_the_nearest(capsys):
    assert check("mixed:2x3g.20gb+1g.5gb", "--gpu-model", "A100-SXM4-40GB") == 1
    out = capsys.readouterr().out
    assert "impossible\n  9 memory slices are needed" in out
    assert "nearest: all-3g.20gb\n┌" in out
    assert "stranded: 0 of 8 memory slices, 1 of 7 compute slices" in out


def test_a_possible_layout_for_programs(capsys):
    assert check("mixed:3g.40gb+2x2g.20gb", "--gpu-model", "h100-sxm5-80gb", "-o", "json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["possible"] is True
    assert answer["counts"] == {"3g.40gb": 1, "2g.20gb": 2}
    assert {"profile": "3g.40gb", "start": 4, "size": 4} in answer["instances"]
    assert answer["stranded"] == {"memory_slices": 0, "compute_slices": 0}


def test_an_impossible_layout_for_programs(capsys):
    assert check("mixed:5x1g.10gb", "--gpu-model", "A100-SXM4-40GB", "-o", "yaml") == 1
    answer = yaml.safe_load(capsys.readouterr().out)
    assert answer["possible"] is False
    assert answer["nearest"] == "all-1g.10gb"
    assert "at most 4" in answer["reason"]
    assert answer["nearest_layout"]["counts"] == {"1g.10gb": 4}


def test_mig_off_and_mig_on_without_instances_are_layouts(capsys):
    assert check("all-disabled", "--gpu-model", "thor") == 0
    assert "MIG is off" in capsys.readouterr().out
    assert check("all-enabled", "--gpu-model", "thor", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["mig_enabled"] is True


@pytest.mark.parametrize(
    ("argv", "field", "reason"),
    [
        (["all-x", "--gpu-model", "a30"], "LAYOUT", "not a layout"),
        (["all-balanced", "--gpu-model", "h100"], "--gpu-model", "could be several boards"),
        (["all-balanced", "--gpu-model", "T4"], "--gpu-model", "no board that MIG can split"),
        (["all-balanced"], "--gpu-model", "a layout is checked for a board"),
        ([], "LAYOUT", "give either LAYOUT or --file"),
        (["all-balanced", "--file", "x"], "LAYOUT", "give either LAYOUT or --file"),
        (["--file", "/does/not/exist"], "--file", "No such file"),
        (["--file", "."], "--file", "cannot read it"),
    ],
)
def test_bad_input_names_the_field_and_exits_2(argv, field, reason, capsys):
    assert check(*argv) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {field}: ")
    assert reason in error


def test_a_board_of_unknown_geometry_is_refused_not_guessed(capsys):
    assert check("all-1g.0gb", "--gpu-model", "thor") == 1
    assert "geometry unknown" in capsys.readouterr().err


def test_a_good_file_is_listed_entry_by_entry(tmp_path, capsys):
    path = tmp_path / "config.yaml"
    path.write_text(FILE)
    assert check("--file", str(path)) == 0
    _, sevenths, off = capsys.readouterr().out.splitlines()
    assert sevenths.split()[:4] == ["sevenths", "4", "all", "7x1g.10gb"]
    assert "possible on" in sevenths
    assert off.split()[:5] == ["off", "8", "0,1", "MIG", "off"]


def test_a_file_with_an_impossible_entry_names_its_line_and_exits_1(tmp_path, capsys):
    path = tmp_path / "config.yaml"
    path.write_text(BAD)
    assert check("--file", str(path)) == 1
    out = capsys.readouterr().out
    assert "line 11: no known board has 2g.20gb beside 3g.20gb" in out
    assert check("--file", str(path), "-o", "json", "--gpu-model", "A100-SXM4-40GB") == 1
    entries = json.loads(capsys.readouterr().out)["entries"]
    assert [e["verdict"] for e in entries] == ["for other boards", "possible", "impossible"]


def test_a_file_that_is_not_text_is_bad_input(tmp_path, capsys):
    path = tmp_path / "config.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    assert check("--file", str(path)) == 2
    assert "not UTF-8 text" in capsys.readouterr().err


def test_a_terminal_without_box_characters_gets_ascii():
    command = [sys.executable, "-c", "from apportion.cli import main; raise SystemExit(main())"]
    argv = ["layout", "check", "all-balanced", "--gpu-model", "a30"]
    done = subprocess.run(
        [*command, *argv], env={"PYTHONIOENCODING": "ascii"}, capture_output=True, check=True
    )
    assert done.stdout.isascii()
    assert b"+-----" in done.stdout
    assert b"?" not in done.stdout


def test_checking_a_layout_loads_no_heavy_module():
    code = (
        "import sys; from apportion.cli import main; "
        "main(['layout', 'check', 'all-balanced', '--gpu-model', 'a30']); "
        "print(*({'yaml', 'rich', 'pydantic', 'psycopg', 'fastapi', 'httpx2'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.splitlines()[-1] == ""
