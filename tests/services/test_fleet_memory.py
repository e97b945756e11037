"""Large pictures are kept in large pages, where the system has them."""

import subprocess
import sys
from pathlib import Path

import pytest

ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
PROGRAM = """
import re
from pathlib import Path
from apportion.reservations.memory import gather

def large():
    rollup = Path("/proc/self/smaps_rollup").read_text()
    return int(re.search(r"AnonHugePages:\\s+(\\d+) kB", rollup)[1])

kept = [[number] for number in range(1_000_000)]
before = large()
gather()
print(large() - before, all(each == [number] for number, each in enumerate(kept)))
"""


@pytest.mark.skipif(
    not ENABLED.exists() or "[never]" in ENABLED.read_text(),
    reason="this system has no large pages to give",
)
def test_what_lies_in_small_pages_is_gathered_into_large_ones_and_stays_what_it_is():
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    gained, same = run.stdout.split()
    assert int(gained) >= 32 * 1024, run.stdout
    assert same == "True"
