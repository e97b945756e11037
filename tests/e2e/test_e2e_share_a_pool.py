"""The guide on sharing a pool, word by word, and what each step leaves behind."""

import json

import pytest
from guides import scripts

# A guide is dozens of commands, each a process.
pytestmark = pytest.mark.timeout(300)

# What the guide says is denied.
DENIED = {"--gpu-count 2": 1, "--name too-many": 1}


def test_the_guide_can_be_followed_word_by_word(shell):
    for command in scripts("docs/guides/share-a-pool.md"):
        shell.step(command, DENIED)
    told = shell.told
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
    left = json.loads(shell.run("apportion reservation list --all -o json").stdout)
    assert left["items"] == []
