"""The guide on access, word by word, and what each step leaves behind."""

import pytest
from guides import scripts

# A guide is dozens of commands, each a process.
pytestmark = pytest.mark.timeout(300)

# What the guide says is denied.
DENIED = {"--gpu-count 9": 1, "--region nyc1": 1, "--owned --token-file auditor.token": 1}


def test_the_guide_can_be_followed_word_by_word(shell, open_path):
    secrets = set()
    for command in scripts("docs/guides/access.md"):
        shell.step(command, DENIED)
        secrets |= {path.read_text("utf-8").strip() for path in open_path.glob("*.token")}

    told = shell.told
    assert "denied:" in told("--gpu-count 9")
    assert "at-most-8" in told("--gpu-count 9")
    assert "allowed:" in told("--gpu-count 8")
    assert "only-fra1" in told("--region nyc1")
    assert "nothing permits compute:pools:create" in told("--owned --token-file auditor.token")
    assert "policy.created" in told("audit list")
    assert len(secrets) == 5  # four tokens, one of them twice
    said = "".join(done.stdout + done.stderr for _, done in shell.done)
    assert not [secret for secret in secrets if secret in said]
    last = shell.run("apportion caller show --token-file trainer.token")
    assert last.returncode == 1
    assert "unknown, revoked or expired" in last.stderr
