"""Two agents never work with one state directory."""

import os
import signal
import subprocess
import sys

import pytest

from apportion.agent.alone import alone, at_work
from apportion.errors import InvalidStateError

HOLD = """
import sys, time
from pathlib import Path
from apportion.agent.alone import alone
with alone(Path(sys.argv[1])):
    print("in", flush=True)
    time.sleep(600)
"""


def test_a_second_agent_is_refused_and_told_who_is_at_work(tmp_path):
    state = tmp_path / "agent"
    assert at_work(state) is None
    with alone(state):
        assert at_work(state) == os.getpid()
        with pytest.raises(InvalidStateError, match=f"process {os.getpid()}"), alone(state):
            pass
    assert at_work(state) is None
    with alone(state):
        pass


def test_one_that_is_killed_is_in_nobodys_way(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "in\n"
        assert at_work(tmp_path) == process.pid
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    with alone(tmp_path):
        pass
