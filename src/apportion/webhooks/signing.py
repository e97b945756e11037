"""Signatures after the Standard Webhooks specification, version 1.

What is signed is ``ID.TIMESTAMP.BODY`` with HMAC-SHA256. A secret is derived from the server's key,
the webhook's id and the number of times that it was rotated, so it is stored nowhere.
"""

import base64
import hmac
from collections.abc import Mapping
from datetime import datetime
from typing import Final

_PREFIX: Final = "whsec_"


def secret_of(key: bytes, webhook_id: str, version: int) -> str:
    """Return a webhook's signing secret as its owner is shown it."""
    secret = hmac.digest(key, f"webhook:{webhook_id}:{version}".encode(), "sha256")
    return _PREFIX + base64.b64encode(secret).decode()


def message_id(event_id: int) -> str:
    """Return what ``webhook-id`` says of an event: no full stop, for that parts what is signed."""
    return f"evt_{event_id}"


def signed_headers(secret: str, message: str, now: datetime, body: bytes) -> Mapping[str, str]:
    """Return the three headers by which a receiver knows who sent this, and when."""
    timestamp = str(int(now.timestamp()))
    content = f"{message}.{timestamp}.".encode() + body
    key = base64.b64decode(secret.removeprefix(_PREFIX))
    signature = base64.b64encode(hmac.digest(key, content, "sha256")).decode()
    return {
        "webhook-id": message,
        "webhook-timestamp": timestamp,
        "webhook-signature": f"v1,{signature}",
    }
