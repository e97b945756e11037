"""The guide on sharing a pool, word by word, and what each step leaves behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_e2e_tutorial import scripts
from test_e2e_up import environment, serving

# What the guide says is denied.
EXITS = {"--gpu-count 2": 1, "--name too-many": 1}


@pytest.fixture
def shell(open_path):
    with serving(open_path / "state", "--no-demo") as (_, url):
        home = {
            **environment(),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "APPORTION_URL": url,
            "APPORTION_TOKEN_FILE": str(open_path / "state" / "root.token"),
        }

        def run(command: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                ["bash", "-c", command],
                capture_output=True,
                text=True,
                check=False,
                cwd=open_path,
                env=home,
            )

        yield run


def test_the_guide_can_be_followed_word_by_word(shell):
    said = {}
    for command in scripts("docs/guides/share-a-pool.md"):
        done = shell(command)
        code = next((code for words, code in EXITS.items() if words in command), 0)
        assert done.returncode == code, f"{command}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
        said[command] = done.stdout + done.stderr

    def told(words: str) -> str:
        return next(text for command, text in said.items() if words in command)

    assert "It would be accepted." in told("pool validate")
    assert "gpu 0 of 2" in told("pool list --token-file")
    assert "training" in told("quota explain")
    assert "pool.offered" in told("audit list")
    assert "denied:" in told("--gpu-count 2")
    assert "one-at-a-time" in told("--gpu-count 2")
    assert "one-at-a-time" in told("too-many")
    assert "allowed:" in told("--gpu-count 1")
    assert "limit 1, used 1, available 0" in told("quota set")
    assert "training" in told("reservation list")
    assert "(archived)" in told("pool archive")
    assert "ended reservations  1" in told("tenant delete")
    assert "revoked tokens      1" in told("tenant delete")
    left = json.loads(shell("apportion reservation list --all -o json").stdout)
    assert left["items"] == []
