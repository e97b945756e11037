"""``--record`` and ``apportion accounting``: once an attempt, exact, whole on disk."""

import json
import multiprocessing
import stat

import pytest

from apportion.cli import main
from apportion.cli import records as records_file


@pytest.fixture
def path(tmp_path, monkeypatch):
    path = tmp_path / "state" / "records.jsonl"
    monkeypatch.setenv("APPORTION_RECORDS", str(path))
    return path


def record(*arguments: str) -> int:
    return main(["plan", "JPCP", "--record", *arguments])


def test_the_documents_example_books_half_a_gpu_hour(path, capsys):
    assert record("--fraction", "0.25", "--timeslice", "--seconds", "7200") == 0
    capsys.readouterr()
    assert main(["accounting"]) == 0
    out = capsys.readouterr().out
    assert "total: 0.5 GPU hours (about 0.500000), of them 0 wasted by rounding up" in out


def test_a_fallbacks_waste_stands_beside_its_hours(path, capsys):
    record("--fraction", "0.25", "--seconds", "7200", "--job-id", "4711")
    record("--fraction", "1/7", "--mig-capable", "--seconds", "3600", "--job-id", "4712")
    capsys.readouterr()
    assert main(["accounting", "-o", "json"]) == 0
    got = json.loads(capsys.readouterr().out)
    assert (got["gpu_hours"], got["wasted_hours"]) == ("15/7", "3/2")
    assert [row["gpu_hours"] for row in got["records"]] == ["2", "1/7"]
    assert got["records"][0]["isolation"] == "exclusive"


def test_a_retry_changes_nothing_and_another_attempt_counts(path, capsys):
    for _ in range(2):
        assert record("--fraction", "0.5", "--mps", "--seconds", "60") == 0
    assert record("--fraction", "0.5", "--mps", "--seconds", "60", "--attempt", "2") == 0
    assert len(path.read_text().splitlines()) == 2


def test_the_time_may_come_later_and_only_once(path, capsys):
    assert record("--fraction", "0.5", "--mps") == 0
    capsys.readouterr()
    main(["accounting"])
    assert "total: 0 GPU hours" in capsys.readouterr().out
    assert record("--fraction", "0.5", "--mps", "--seconds", "3600") == 0
    before = path.read_bytes()
    assert record("--fraction", "0.5", "--mps", "--seconds", "3601") == 1
    assert "recorded already, and differently" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_the_file_is_its_owners_alone_and_nothing_is_left_beside_it(path):
    record("--fraction", "0.5")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert sorted(entry.name for entry in path.parent.iterdir()) == [
        "records.jsonl",
        "records.jsonl.lock",
    ]


def test_what_a_crash_left_is_in_nobodys_way(path):
    path.parent.mkdir()
    path.with_name("records.jsonl.new").write_text("half a rec")
    assert record("--fraction", "0.5") == 0
    assert len(path.read_text().splitlines()) == 1


def test_a_flag_names_another_file(path, tmp_path, capsys):
    other = tmp_path / "other.jsonl"
    assert record("--fraction", "0.5", "--records", str(other), "--seconds", "3600") == 0
    assert not path.exists()
    capsys.readouterr()
    assert main(["accounting", "--records", str(other)]) == 0
    assert "total: 1 GPU hours" in capsys.readouterr().out


def test_without_any_setting_the_file_is_in_the_users_state_directory(monkeypatch, tmp_path):
    monkeypatch.delenv("APPORTION_RECORDS", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert records_file.path_of(None) == tmp_path / "apportion" / "records.jsonl"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert records_file.path_of(None) == tmp_path / ".local/state/apportion/records.jsonl"


def test_nothing_recorded_yet_is_said(path, capsys):
    assert main(["accounting"]) == 0
    assert "nothing is recorded yet" in capsys.readouterr().out
    assert main(["accounting", "--records", str(path)]) == 2
    assert "there is no such file" in capsys.readouterr().err


GOOD = {
    "job_id": "1",
    "attempt": 1,
    "label": "a",
    "mechanism": "whole",
    "requested": "1/4",
    "allocated": "1",
    "seconds": None,
}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("not json", "is not JSON"),
        ("[]", "is not a JSON object"),
        ('{"job_id": "1"}', "has other keys"),
        (json.dumps({**GOOD, "extra": 1}), "has other keys"),
        (json.dumps({**GOOD, "attempt": "1"}), "bad attempt or mechanism"),
        (json.dumps({**GOOD, "mechanism": "magic"}), "bad attempt or mechanism"),
        (json.dumps({**GOOD, "allocated": "0"}), "allocated: must be greater than 0"),
        (json.dumps({**GOOD, "seconds": "-1"}), "seconds"),
        (json.dumps({**GOOD, "job_id": ""}), "job_id"),
        (json.dumps({**GOOD, "label": None, "attempt": 0}), "attempt"),
    ],
)
def test_a_bad_line_is_named_and_the_file_left_alone(path, capsys, line, words):
    path.parent.mkdir()
    path.write_text(f"{json.dumps(GOOD)}\n{line}\n")
    before = path.read_bytes()
    for arguments in (["accounting"], ["plan", "b", "--record"]):
        assert main(arguments) == 2
        captured = capsys.readouterr()
        assert "records.jsonl, line 2: " in captured.err
        assert words in captured.err
    assert path.read_bytes() == before


def test_a_file_that_is_no_text_or_no_file_is_refused(path, capsys):
    path.parent.mkdir()
    path.write_bytes(b"\xff\xfe")
    assert main(["accounting"]) == 2
    assert "is not UTF-8" in capsys.readouterr().err
    path.unlink()
    path.mkdir()
    assert record("--fraction", "0.5") == 1
    captured = capsys.readouterr()
    assert "records file" in captured.err
    assert captured.out == ""


def _write_some(start: int) -> None:
    for number in range(start, start + 10):
        assert record("--fraction", "0.5", "--job-id", str(number)) == 0


def test_writers_at_once_lose_nothing_of_each_others(path):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_some, args=(n * 10,)) for n in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0] * 4
    assert len(records_file.read(path).records) == 40
