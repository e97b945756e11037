"""The guide on access, word by word, and what each step leaves behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_e2e_tutorial import scripts
from test_e2e_up import environment, serving

# What the guide says is denied.
DENIED = ("--gpu-count 9", "--region nyc1", "--owned --token-file auditor.token")


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


def test_the_guide_can_be_followed_word_by_word(shell, open_path):
    said = {}
    secrets = set()
    for command in scripts("docs/guides/access.md"):
        done = shell(command)
        code = int(any(words in command for words in DENIED))
        assert done.returncode == code, f"{command}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
        said[command] = done.stdout + done.stderr
        secrets |= {path.read_text("utf-8").strip() for path in open_path.glob("*.token")}

    def told(words: str) -> str:
        return next(text for command, text in said.items() if words in command)

    assert "denied:" in told("--gpu-count 9")
    assert "at-most-8" in told("--gpu-count 9")
    assert "allowed:" in told("--gpu-count 8")
    assert "only-fra1" in told("--region nyc1")
    assert "nothing permits compute:pools:create" in told(DENIED[2])
    assert "policy.created" in told("audit list")
    assert len(secrets) == 5  # four tokens, one of them twice
    assert not [text for text in said.values() if any(secret in text for secret in secrets)]
    last = shell("apportion caller show --token-file trainer.token")
    assert last.returncode == 1
    assert "unknown, revoked or expired" in last.stderr
