"""``apportion plan``: the documents' examples as they stand, and every flag."""

import json

import pytest
import yaml

from apportion.cli import main


@pytest.fixture(autouse=True)
def records(tmp_path, monkeypatch):
    path = tmp_path / "state" / "records.jsonl"
    monkeypatch.setenv("APPORTION_RECORDS", str(path))
    return path


@pytest.fixture
def plan(capsys):
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["plan", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def document(plan, *arguments: str):
    code, out, err = plan(*arguments, "-o", "json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_the_honest_fallback_reads_as_the_document_shows(plan):
    code, out, err = plan("JPCP", "--fraction", "0.25")
    assert (code, err) == (0, "")
    assert out == (
        "JPCP: whole (isolation: exclusive) — 1.00 GPU\n"
        "  no fractional support — rounded 0.25 up to a whole GPU (75% wasted)\n"
        "  ⚠ 75% GPU capacity wasted by this fallback.\n"
    )


def test_with_mig_the_smallest_large_enough_profile_and_the_assumed_model(plan):
    _, out, _ = plan("JPCP", "--fraction", "0.25", "--mig-capable")
    assert out.startswith("JPCP: mig 2g.10gb (isolation: hardware) — 2/7 GPU\n")
    assert "no --gpu-model given: A100-SXM4-40GB assumed" in out
    assert "⚠ 3.57% GPU capacity wasted" in out
    _, out, _ = plan("JPCP", "--fraction", "0.25", "--mig-capable", "--gpu-model", "A30")
    assert out.startswith("JPCP: mig 1g.6gb (isolation: hardware) — 0.25 GPU\n")
    assert "assumed" not in out


def test_with_time_slices_isolation_is_soft(plan):
    _, out, _ = plan("JPCP", "--fraction", "0.5", "--timeslice")
    assert out.startswith("JPCP: timeslice (isolation: soft) — 0.50 GPU\n")
    assert "⚠" not in out


def test_the_exact_profile(plan):
    _, out, _ = plan("JPCP", "--mig", "2g.10gb", "--mig-capable")
    assert out.startswith("JPCP: mig 2g.10gb (isolation: hardware) — 2/7 GPU\n")


def test_json_has_the_promised_names_and_exact_strings(plan):
    got = document(plan, "JPCP", "--fraction", "0.25")
    assert {
        "mechanism": "whole",
        "isolation": "exclusive",
        "mig_profile": None,
        "requested": "1/4",
        "allocated": "1",
        "wasted": "3/4",
    }.items() <= got.items()
    assert got["note"].startswith("no fractional support")
    assert (got["gpu_model"], got["gpu_model_assumed"]) == ("A100-SXM4-40GB", True)


def test_yaml_says_the_same_as_json(plan):
    _, out, _ = plan("JPCP", "--fraction", "1/7", "--mig-capable", "-o", "yaml")
    assert yaml.safe_load(out) == document(plan, "JPCP", "--fraction", "1/7", "--mig-capable")


@pytest.mark.parametrize(
    ("arguments", "mechanism", "allocated"),
    [
        (["--gpus", "2"], "whole", "2"),
        ([], "whole", "1"),
        (["--memory", "10Gi", "--mps"], "mps", "1/4"),
        (["--memory", "4GiB", "--mig-capable"], "mig", "1/7"),
        (["--slots", "2", "--mps", "--slots-per-gpu", "7"], "mps", "7/25"),
        (["--fraction", "0.3", "--timeslice", "--slots-per-gpu", "4"], "timeslice", "1/2"),
        (["--fraction", "0.3", "--timeslice", "--isolation", "hardware"], "whole", "1"),
        (["--fraction", "0.3", "--mig-capable", "--mps", "--timeslice"], "mig", "3/7"),
        (["--fraction", "1/7", "--mig-profile", "2g.10gb"], "mig", "2/7"),
        (["--mig", "1g.10gb", "--mig-profile", "2g.10gb", "--allow-larger"], "mig", "2/7"),
    ],
)
def test_every_form_of_ask_and_capability(plan, arguments, mechanism, allocated):
    got = document(plan, "a", *arguments)
    assert (got["mechanism"], got["allocated"]) == (mechanism, allocated)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--mig", "2g.10gb"], "not split by MIG"),
        (["--mig", "2g.20gb", "--mig-capable"], "has no profile 2g.20gb (on offer: 1g.5gb"),
        (["--memory", "41Gi", "--timeslice"], "more than the 40GiB of one GPU"),
        (["--slots", "2", "--timeslice"], "no fixed slots"),
    ],
)
def test_what_is_not_possible_as_asked_exits_1_with_the_reason(plan, arguments, words):
    code, out, err = plan("JPCP", *arguments)
    assert (code, out) == (1, "")
    assert err.startswith("error: JPCP: ")
    assert words in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--fraction", "0"], "fraction: must be greater than 0 (given: '0')"),
        (["--fraction", "5.3333"], "above 1 must be whole"),
        (["--fraction", "½"], "fraction"),
        (["--fraction=-0.1"], "greater than 0"),
        (["--mig", "1c.3g.20gb", "--mig-capable"], "compute instance"),
        (["--mig", "half"], "not a MIG profile"),
        (["--memory", "20"], "memory: needs a unit"),
        (["--slots", "0"], "slots"),
        (["--slots", "x"], "--slots"),
        (["--gpus", "0"], "gpus"),
        (["--gpus", "1_0"], "--gpus"),
        (["--isolation", "hard"], "isolation: there is no such isolation"),
        (["--slots-per-gpu", "49", "--mps"], "slots_per_gpu"),
        (["--mig-capable", "--gpu-model", "h100"], "gpu_model"),
        (["--mig-capable", "--gpu-model", "nonsense"], "gpu_model"),
        (["--gpu-model", ""], "gpu_model"),
        (["--mig-profile", "1g.24gb"], "mig_profiles[0]"),
        (["--fraction", "0.5", "--gpus", "1"], "--gpus"),
        (["--for", "pbs"], "--for"),
        (["-o", "xml"], "--output"),
        (["--pool", "p", "--mps"], "--pool"),
        (["--seconds", "5"], "--seconds"),
        (["--record", "--seconds", "-5"], "seconds"),
        (["--record", "--seconds", "x"], "seconds"),
        (["--record", "--attempt", "0"], "attempt"),
        (["--record", "--job-id", ""], "job_id"),
    ],
)
def test_bad_input_exits_2_names_the_field_and_writes_nothing(plan, records, arguments, words):
    code, out, err = plan("JPCP", *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert not records.exists()


def test_a_label_must_be_printable(plan):
    assert plan("")[0] == 2
    assert plan("\x1b[31m")[0] == 2
    assert plan()[0] == 2


def test_slurm_and_kubernetes_get_their_lines(plan):
    _, out, _ = plan("JPCP", "--mig", "2g.10gb", "--mig-capable", "--for", "slurm")
    assert out.endswith("\n#SBATCH --gres=gpu:a100_2g.10gb:1\n")
    got = document(plan, "JPCP", "--fraction", "0.25", "--mps", "--for", "kubernetes")
    limits, claim = yaml.safe_load_all(got["rendered"])
    assert limits["resources"]["limits"] == {"nvidia.com/gpu.shared": 1}
    assert claim["kind"] == "ResourceClaim"


def test_a_pools_capabilities_come_from_the_server(plan, monkeypatch):
    from types import ModuleType

    from apportion.planning import ClusterGpuCaps

    module = ModuleType("apportion.cli.server_caps")
    module.pool_capabilities = lambda pool: ClusterGpuCaps(  # pyright: ignore[reportAttributeAccessIssue]
        supports_mig=pool == "training", gpu_model="a30-24gb"
    )
    monkeypatch.setitem(__import__("sys").modules, "apportion.cli.server_caps", module)
    got = document(plan, "a", "--fraction", "0.5", "--pool", "training")
    assert (got["mig_profile"], got["gpu_model_assumed"]) == ("2g.12gb", False)
