"""Named zones are known also where the system has no data of them, as in a slim container."""

import subprocess
import sys

CODE = """
from datetime import UTC, datetime
from zoneinfo import TZPATH, ZoneInfo
assert TZPATH == ()
print(datetime(2036, 7, 1, tzinfo=UTC).astimezone(ZoneInfo("Europe/Berlin")).hour)
"""


def test_zones_are_known_without_the_systems_data():
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env={"PYTHONTZPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == ("2", "")
