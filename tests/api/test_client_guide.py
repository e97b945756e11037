"""The guide's code runs as it stands, one block after another."""

import os
import re
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from api_server import served

pytestmark = pytest.mark.anyio

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "python-client.md"


async def test_the_guide_does_what_it_says(dsn):
    blocks = re.findall(
        r"^```python\n(.*?)^```", GUIDE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert len(blocks) == 6

    def run():
        with served(dsn) as there:
            given = {"APPORTION_URL": there.url, "APPORTION_TOKEN": there.token}
            return subprocess.run(
                [sys.executable, "-W", "error", "-c", "\n".join(blocks)],
                env={**os.environ, **given},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )

    done = await anyio.to_thread.run_sync(run)
    assert (done.returncode, done.stderr) == (0, "")
    told = done.stdout
    assert "acts for root as owner" in told
    assert "\npending " in told
    assert "\nh100 ['gpu.mig: 0 of unlimited'" in told
    assert "\n['reservation." in told
    assert "\nFalse [" in told
    assert "\nINVALID_INPUT sharing sliced " in told
    assert told.rstrip().splitlines()[-1].split()[1] == "reservation.ended"
