"""``apportion pack``: the document's example, the picture, the reasons, the names in JSON."""

import json
import random
import subprocess
import sys

import pytest

from apportion.cli import main


@pytest.fixture
def pack(capsys):
    def run(asks: str, *arguments: str) -> tuple[int, str, str]:
        words = [word for ask in asks.split() for word in ("--ask", ask)]
        code = main(["pack", *words, *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_the_documents_example_fills_two_gpus_and_draws_them(pack):
    code, out, err = pack("a:0.5 b:0.3 c:0.4", "--gpus", "2", "--timeslice")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "GPU 0: timeslice, 0.1 free"
    assert "a 0.5" in lines[2]
    assert "c 0.4" in lines[2]
    assert lines[4] == "GPU 1: timeslice, 0.7 free"
    assert lines[-1] == "2 of 2 GPUs used"


def test_a_mig_set_that_sums_to_one_and_cannot_lie_exits_1_with_the_reason(pack):
    code, out, _ = pack("a:3g.20gb b:3g.20gb c:1g.5gb", "--gpus", "1", "--mig-capable")
    assert code == 1
    assert "GPU 0: mig, 1/7 stranded" in out
    assert "not placed (1):\n  c: no GPU has a legal placement left for 1g.5gb" in out
    assert "no --gpu-model given: A100-SXM4-40GB assumed" in out


def test_each_use_of_a_gpu_has_its_picture(pack):
    _, out, _ = pack("t:1 s:2slots s:3slots", "--gpus", "2", "--mps", "--slots-per-gpu", "7")
    assert "GPU 0: whole\n" in out
    assert "GPU 1: mps, 0.28 free, 0.02 stranded" in out
    _, out, _ = pack("a:0.9 b:0.0000001", "--gpus", "1", "--timeslice")
    assert "b 1/10000000" in out  # a share too small for the scale is still drawn


def test_json_has_the_promised_names(pack):
    code, out, _ = pack("a:3g.20gb b:2g.20gb", "--gpus", "2", "--mig-capable", "-o", "json")
    assert code == 1
    got = json.loads(out)
    assert got["gpus_used"] == 1
    first, second = got["gpus"]
    assert (first["index"], first["mechanism"]) == (0, "mig")
    assert first["placed"] == [
        {"label": "a", "share": "3/7", "mig_profile": "3g.20gb", "start": 4, "size": 4}
    ]
    assert (second["mechanism"], second["placed"]) == (None, [])
    (entry,) = got["unplaced"]
    assert (entry["label"], entry["code"]) == ("b", "no_such_profile")
    assert "has no profile 2g.20gb" in entry["reason"]


def test_shares_have_a_share_and_slots_a_place(pack):
    _, out, _ = pack("a:0.5", "--gpus", "1", "--timeslice", "-o", "json")
    assert json.loads(out)["gpus"][0]["placed"] == [{"label": "a", "share": "1/2"}]
    _, out, _ = pack("a:0.5", "--gpus", "1", "--mps", "--slots-per-gpu", "4", "-o", "json")
    assert json.loads(out)["gpus"][0]["placed"] == [
        {"label": "a", "share": "1/2", "start": 0, "size": 2}
    ]


def test_two_asks_with_one_label_stay_two(pack):
    _, out, _ = pack("a:0.8 a:0.8 a:0.1", "--gpus", "1", "--timeslice", "-o", "json")
    got = json.loads(out)
    assert [entry["label"] for entry in got["gpus"][0]["placed"]] == ["a", "a"]
    assert [entry["label"] for entry in got["unplaced"]] == ["a"]


def test_the_strategy_is_the_callers(pack):
    asks = "a:7slots b:4slots c:4slots d:1slot"
    shared = ("--gpus", "2", "--timeslice", "--slots-per-gpu", "10", "-o", "json")
    for strategy, gpu in (("ffd", 0), ("best", 1)):
        _, out, _ = pack(asks, *shared, "--strategy", strategy)
        assert json.loads(out)["strategy"] == strategy
        assert "d" in [entry["label"] for entry in json.loads(out)["gpus"][gpu]["placed"]]


@pytest.mark.parametrize(
    ("asks", "arguments", "words"),
    [
        ("a", ["--gpus", "1"], "--ask: is no ask"),
        ("a:0", ["--gpus", "1"], "--ask 'a': must be greater than 0"),
        ("a:half", ["--gpus", "1"], "--ask 'a'"),
        ("a:1.5", ["--gpus", "1"], "above 1 must be whole"),
        ("a:0.5", [], "--gpus"),
        ("", ["--gpus", "1"], "--ask"),
        ("a:0.5", ["--gpus", "0"], "gpu_count"),
        ("a:0.5", ["--gpus", "99999999999"], "gpu_count"),
        ("a:0.5", ["--gpus", "1", "--strategy", "worst"], "--strategy"),
        ("a:0.5", ["--gpus", "1", "--isolation", "x"], "isolation"),
        ("a:0.5", ["--gpus", "1", "--time-limit", "9s"], "--time-limit: only the strategy exact"),
        ("a:0.5", ["--gpus", "1", "--strategy", "exact", "--time-limit", "9"], "--time-limit"),
        ("a:0.5", ["--gpus", "1", "--strategy", "exact", "--time-limit", "0s"], "longer than 0"),
    ],
)
def test_bad_input_exits_2_and_names_the_field(pack, asks, arguments, words):
    code, out, err = pack(asks, *arguments)
    assert (code, out) == (2, "")
    assert words in err


TRAP = "a:0.5 b:0.4 c:0.3 d:0.3 e:0.3 f:0.2"


def test_exact_packs_onto_fewer_gpus_draws_them_and_says_that_none_needs_less(pack):
    _, out, _ = pack(TRAP, "--gpus", "4", "--timeslice")
    assert out.splitlines()[-1] == "3 of 4 GPUs used"
    code, out, err = pack(TRAP, "--gpus", "4", "--timeslice", "--strategy", "exact")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "2 of 4 GPUs used: optimal"
    assert "GPU 1: timeslice\n" in out
    assert "b 0.4" in out


def test_exact_tells_its_bound_in_json_and_others_none(pack):
    asks = ("--gpus", "4", "--timeslice", "-o", "json", "--strategy")
    _, out, _ = pack(TRAP, *asks, "exact", "--time-limit", "1m")
    got = json.loads(out)
    assert (got["optimal"], got["bound"], got["gpus_used"]) == (True, 2, 2)
    _, out, _ = pack(TRAP, *asks, "best")
    assert not {"optimal", "bound"} & set(json.loads(out))


def test_what_is_not_proven_says_how_many_are_needed_at_least(pack):
    draw = random.Random(1)
    fine = " ".join(f"a:{draw.randint(200_000, 600_000)}/1000003" for _ in range(120))
    shared = ("--gpus", "100", "--timeslice", "--strategy", "exact", "--time-limit", "1s")
    _, out, _ = pack(fine, *shared)
    assert out.splitlines()[-1] == "51 of 100 GPUs used: best found, at least 50"


def test_without_the_extra_exact_exits_2_with_the_command_that_installs_it(pack, monkeypatch):
    monkeypatch.setitem(sys.modules, "ortools", None)
    code, out, err = pack("a:0.5", "--gpus", "1", "--timeslice", "--strategy", "exact")
    assert (code, out) == (2, "")
    assert "strategy: needs OR-Tools, which is not installed" in err
    assert "pip install 'apportion[exact]'" in err


def test_other_strategies_load_no_solver():
    code = (
        "import sys; from apportion.cli import main; "
        "main(['pack', '--ask', 'a:0.5', '--gpus', '1', '--timeslice']); "
        "sys.exit(any(name in sys.modules for name in ('ortools', 'numpy', 'pandas')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
