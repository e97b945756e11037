"""Other packages add acceptance checks by being installed."""

import pytest

from apportion import plugins
from apportion.agent.acceptance import run_check
from apportion.errors import InvalidInputError
from apportion.pools.policy import policy_problems

CHECK = """
def fans(document, step):
    for node in [document["node"]]:
        if step["fans"] > 2:
            yield f"{node} has 2 fans"
"""
POLICY = {"acceptance": [{"kind": "diag.nvml"}, {"kind": "diag.fans", "fans": 3}]}


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install a package that adds the check ``diag.fans``."""
    (tmp_path / "our_checks.py").write_text(CHECK)
    folder = tmp_path / "our_checks-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: our-checks\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        "[apportion.acceptance]\ndiag.fans = our_checks:fans\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    plugins._points.cache_clear()
    yield
    plugins._points.cache_clear()


def test_a_check_of_another_package_is_known_and_gets_its_own_parameters(installed):
    assert policy_problems(POLICY, "exclusive", "H100") == []
    result = run_check("diag.fans", {"node": "n1"}, POLICY["acceptance"][1])
    assert (result.passed, result.details) == (False, ("n1 has 2 fans",))
    assert run_check("diag.fans", {"node": "n1"}, {"kind": "diag.fans", "fans": 1}).passed


def test_a_check_that_is_not_installed_is_refused_and_those_that_are_named():
    [problem] = policy_problems(POLICY, "exclusive", "H100")
    assert (problem.field, problem.given) == ("policy.acceptance[1].kind", "diag.fans")
    assert problem.allowed == "diag.nvml"
    with pytest.raises(InvalidInputError, match="no such check"):
        run_check("diag.fans", {"node": "n1"})
