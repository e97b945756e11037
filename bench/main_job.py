"""The main job as its user runs it: `apportion up --once` on an empty state and on the kept one."""

import os
import re
import subprocess
import sys
import tempfile
import time


def run() -> dict[str, float]:
    """Time two whole processes; the first also says how many tasks it decided a second."""
    with tempfile.TemporaryDirectory() as state:
        first, output = _up(state)
        second, _ = _up(state)
    told = re.search(r"([\d,]+) tasks .* decided in ([\d.]+) s", output)
    if told is None:
        raise RuntimeError(f"the report does not say how many tasks were decided:\n{output}")
    tasks, seconds = int(told[1].replace(",", "")), float(told[2])
    return {
        "main_job.first_run_seconds": first,
        "main_job.kept_state_seconds": second,
        "main_job.tasks": tasks,
        "main_job.tasks_seconds": seconds,
        "main_job.decisions_per_second": tasks / seconds,
    }


def _up(state: str) -> tuple[float, str]:
    command = [sys.executable, "-m", "apportion", "up", "--once", "--port", "0", "--state", state]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("APPORTION_")}
    started = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return time.perf_counter() - started, done.stdout
