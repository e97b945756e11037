"""``apportion up`` as a process of its own."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "apportion", "up", "--port", "0"]


def environment() -> dict[str, str]:
    """Give a machine on which nothing of ours is set."""
    return {k: v for k, v in os.environ.items() if not k.startswith("APPORTION_")}


@contextmanager
def serving(state: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the server until it says where it answers."""
    process = subprocess.Popen(
        [*COMMAND, "--state", str(state), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(),
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        seen = []
        for line in process.stdout:
            seen.append(line)
            if found := re.search(r"answers at (http://\S+)", line):
                yield process, found[1]
                break
        else:
            pytest.fail(f"the server ended: {''.join(seen)}")
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()
