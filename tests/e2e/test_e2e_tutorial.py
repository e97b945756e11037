"""The tutorial and the README's first session, word by word, on the real demo."""

import re

import pytest
from guides import scripts, shell_at_server

# A guide is dozens of commands, each a process.
pytestmark = pytest.mark.timeout(300)

# What the documents say is refused or has to wait.
EXITS = {"--name second-4g": 1, "--isolation hardware": 1}


@pytest.fixture
def shell(open_path):
    """Give a shell at a server with the demo, of the test's own."""
    with shell_at_server(open_path) as shell:
        yield shell


def test_the_tutorial_can_be_followed_word_by_word(shell):
    reservation = "none yet"
    for script in scripts("docs/tutorial.md"):
        done = shell.step(re.sub(r"\bID\b", reservation, script), EXITS)
        if found := re.search(r"^(res_\w+)", done.stdout, re.MULTILINE):
            reservation = found[1]


def test_the_readmes_first_session_works_as_written(shell):
    for command in scripts("README.md"):
        shell.step(command)
