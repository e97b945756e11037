"""The guide's receivers verify what is really sent, and nothing else."""

import os
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from apportion.webhooks.signing import secret_of, signed_headers

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "webhooks.md"
SENT = datetime(2026, 3, 2, 9, tzinfo=UTC)
SECRET = secret_of(b"k" * 32, "whk_1", 1)
BODY = '{"subject": "pool_1", "data": {"name": "Zoë"}}'.encode()


def block(language):
    [found] = re.findall(rf"```{language}\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    return found


@pytest.fixture
def headers():
    return dict(signed_headers(SECRET, "evt_7", SENT, BODY))


def in_python(secret, headers, body, seconds_later=0):
    names = {}
    exec(block("python"), names)  # noqa: S102 - the guide's own text
    try:
        names["verify"](secret, headers, body, now=SENT.timestamp() + seconds_later)
    except ValueError:
        return False
    return True


def in_shell(secret, headers, body, tmp_path):
    (tmp_path / "body.json").write_bytes(body)
    variables = {
        "SECRET": secret,
        "ID": headers["webhook-id"],
        "TIMESTAMP": headers["webhook-timestamp"],
        "SIGNATURE": headers["webhook-signature"],
    }
    done = subprocess.run(
        ["sh", "-c", block("sh")], cwd=tmp_path, env={**os.environ, **variables}, check=False
    )
    return done.returncode == 0


def test_what_was_sent_is_verified(headers, tmp_path):
    assert in_python(SECRET, headers, BODY)
    assert in_shell(SECRET, headers, BODY, tmp_path)


@pytest.mark.parametrize("change", ["secret", "body", "webhook-id", "webhook-timestamp"])
def test_what_was_not_sent_like_that_is_not(headers, tmp_path, change):
    secret, body = SECRET, BODY
    if change == "secret":
        secret = secret_of(b"k" * 32, "whk_1", 2)
    elif change == "body":
        body = BODY.replace(b"pool_1", b"pool_2")
    else:
        headers[change] = headers[change][:-1] + "8"
    assert not in_python(secret, headers, body)
    assert not in_shell(secret, headers, body, tmp_path)


def test_what_is_repeated_later_is_not(headers):
    assert in_python(SECRET, headers, BODY, seconds_later=299)
    assert not in_python(SECRET, headers, BODY, seconds_later=301)
    assert not in_python(SECRET, headers, BODY, seconds_later=-301)


def test_several_signatures_are_looked_through(headers):
    headers["webhook-signature"] = "v1,AAAA " + headers["webhook-signature"]
    assert in_python(SECRET, headers, BODY)
