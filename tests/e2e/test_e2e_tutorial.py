"""The tutorial and the README's first session, word by word, on the real demo."""

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_e2e_up import environment, serving

ROOT = Path(__file__).parents[2]
SET_UP = re.compile(r"make |export ")
# What the documents say is refused or has to wait.
EXITS = {"--name second-4g": 1, "--isolation hardware": 1}


def blocks(document: str) -> Iterator[str]:
    """Give the indented blocks of a document, as they would be typed."""
    text = (ROOT / document).read_text("utf-8")
    for block in re.findall(r"(?:^(?:    .*|)\n)+", text, re.MULTILINE):
        typed = textwrap.dedent(block).strip("\n")
        if typed:
            yield typed


def scripts(document: str) -> list[str]:
    """Split blocks into what is run one by one: a command a line, a here-document as a whole."""
    found = []
    for block in blocks(document):
        found += [block] if "<<" in block else block.splitlines()
    return [each for each in found if not SET_UP.match(each)]


@pytest.fixture
def shell(open_path):
    with serving(open_path / "state") as (_, url):
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


def expected(command: str) -> int:
    return next((code for words, code in EXITS.items() if words in command), 0)


def test_the_tutorial_can_be_followed_word_by_word(shell):
    reservation = "none yet"
    for script in scripts("docs/tutorial.md"):
        command = re.sub(r"\bID\b", reservation, script)
        done = shell(command)
        assert done.returncode == expected(command), f"{command}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
        if found := re.search(r"^(res_\w+)", done.stdout, re.MULTILINE):
            reservation = found[1]


def test_the_readmes_first_session_works_as_written(shell):
    for command in scripts("README.md"):
        done = shell(command)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
