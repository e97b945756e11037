"""What a person meets at the command line where something around it is not as it should be."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from apportion.cli import main
from apportion.cli.columns import centred, columns, left, right
from apportion.cli.draw import Cell, draw_gpu
from apportion.cli.output import table

WIDE = [("", 0), ("ana", 3), ("é", 1), ("e\u0301", 1), ("日本", 4), ("🚀", 2), ("ＡＢ", 4)]  # noqa: RUF001 - wide on purpose


@pytest.mark.parametrize(("text", "width"), WIDE)
def test_a_text_takes_the_columns_that_a_terminal_gives_it(text, width):
    assert columns(text) == width
    for pad in (left, right, centred):
        assert columns(pad(text, 9)) == 9
        assert pad(text, 0) == text


def test_columns_of_a_table_stand_in_line_whatever_is_written_in_them():
    lines = table(("name", "state"), [(text, "placed") for text, _ in WIDE]).splitlines()
    before = {columns(line[: line.index("placed")]) for line in lines[1:]}
    assert before == {lines[0].index("STATE")}


def test_boxes_stay_boxes_around_wide_names():
    lines = draw_gpu(8, [Cell(label="日本語", mask=0b1111), Cell(label="🚀" * 5, mask=1 << 5)])
    assert len({columns(line) for line in lines[:3]}) == 1
    assert lines[-1] == f"  a = {'🚀' * 5}"


def test_a_full_disk_is_named_and_not_called_a_fault_of_ours():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "apportion", "gpu", "list"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("error: No space left on device\n")
    assert "fault" not in done.stderr


def test_a_wait_for_a_server_that_is_away_ends_when_its_time_is_up(monkeypatch, capsys):
    monkeypatch.setenv("APPORTION_TOKEN", f"apt_{'x' * 40}")
    monkeypatch.delenv("APPORTION_TENANT", raising=False)
    began = time.monotonic()
    code = main(["reservation", "wait", "res_1", "--timeout", "1s", "--url", "http://127.0.0.1:9"])
    assert time.monotonic() - began < 30
    said = capsys.readouterr()
    assert (code, said.out) == (1, "")
    assert "trying on" in said.err
    assert "error: no server answers at http://127.0.0.1:9" in said.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--nodes", "0"), "--nodes: is out of range (given: 0); allowed: 1 or more"),
        (("--nodes", "9" * 19), "--nodes: is too large"),
    ],
)
def test_no_simulated_nodes_are_refused_before_anything_is_started(
    words, said, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("APPORTION_STATE", str(tmp_path / "state"))
    assert main(["up", "--simulate", "dgx-h100", *words]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "state").exists()


def test_a_port_is_read_as_any_other_number(capsys):
    assert main(["up", "--port", "abc"]) == 2
    assert "must be a whole number such as 4 (given: 'abc')" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [("plan", "a", "--mig", "3g.40gb"), ("pack", "--ask", "a:3g.40gb", "--gpus", "1")],
    ids=["plan", "pack"],
)
def test_who_forgot_to_say_that_mig_can_split_the_gpus_is_told_how(words, capsys):
    model = ("--gpu-model", "H100-SXM5-80GB")
    assert main([*words, *model]) == 1
    said = capsys.readouterr()
    assert "say so: --mig-capable" in said.out + said.err
    assert main([*words, *model, "--mig-capable"]) == 0
    assert "--mig-capable" not in capsys.readouterr().out
