"""A command as a whole process, as a multiple of `import argparse` in the same run."""

import os
import statistics
import subprocess
import sys
import time

ROUNDS = 25


def run() -> dict[str, float]:
    """Time plans and the bare import in turn, so that a busy machine slows both alike."""
    python = [sys.executable]
    plan = [sys.executable, "-m", "apportion", "plan", "JPCP", "--fraction", "0.25"]
    commands = {
        "argparse": [*python, "-c", "import argparse"],
        "plan": plan,
        "plan_mig": [*plan, "--mig-capable"],
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(ROUNDS + 2):
        for name, command in commands.items():
            taken = _seconds(command)
            if turn >= 2:  # the first two turns write the byte code
                seconds[name].append(taken)
    bare = statistics.median(seconds["argparse"])
    figures = {f"startup.{name}_ms": 1000 * statistics.median(s) for name, s in seconds.items()}
    figures["startup.plan_ratio_to_argparse"] = statistics.median(seconds["plan"]) / bare
    figures["startup.plan_mig_ratio_to_argparse"] = statistics.median(seconds["plan_mig"]) / bare
    return figures


def _seconds(command: list[str]) -> float:
    # A shell that forbids byte code would time the compiler.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return time.perf_counter() - started
