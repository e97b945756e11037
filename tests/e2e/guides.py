"""Guides as their reader follows them: each command typed as it stands, at a server of its own."""

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from server_process import environment, serving

ROOT = Path(__file__).parents[2]
SET_UP = re.compile(r"make |export ")


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


class Shell:
    """A shell in a directory, with the command and a server to ask."""

    def __init__(self, path: Path, url: str, token_file: Path) -> None:
        self.path = path
        self.done: list[tuple[str, subprocess.CompletedProcess[str]]] = []
        self._environment = {
            **environment(),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "APPORTION_URL": url,
            "APPORTION_TOKEN_FILE": str(token_file),
        }

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the test's own, whatever it answers."""
        return subprocess.run(
            ["bash", "-c", command],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.path,
            env=self._environment,
        )

    def step(
        self, command: str, refused: Mapping[str, int] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of a guide, which works, or exits as ``refused`` says of words in it."""
        done = self.run(command)
        code = next((code for words, code in (refused or {}).items() if words in command), 0)
        assert done.returncode == code, f"{command}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
        self.done.append((command, done))
        return done

    def told(self, words: str) -> str:
        """Give what the first step with these words told the reader."""
        return next(done.stdout + done.stderr for command, done in self.done if words in command)


@contextmanager
def shell_at_server(path: Path, *flags: str) -> Iterator[Shell]:
    """Run a server, and give a shell beside its state."""
    with serving(path / "state", *flags) as (_, url):
        yield Shell(path, url, path / "state" / "root.token")
