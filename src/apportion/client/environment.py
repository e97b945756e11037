"""Where the server is, which token to use and for whom, by the environment."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from apportion.errors import UnauthenticatedError

URL_DEFAULT: Final = "http://127.0.0.1:7070"


def server_url(environment: Mapping[str, str]) -> str:
    """Return APPORTION_URL, or where `apportion up` listens by default."""
    return environment.get("APPORTION_URL") or URL_DEFAULT


def server_tenant(environment: Mapping[str, str]) -> str | None:
    """Return APPORTION_TENANT; None where the token's own tenant acts."""
    return environment.get("APPORTION_TENANT") or None


def server_token(environment: Mapping[str, str]) -> str:
    """Return APPORTION_TOKEN, or what the file APPORTION_TOKEN_FILE holds.

    Raises UnauthenticatedError that says what to set.
    """
    if token := environment.get("APPORTION_TOKEN", "").strip():
        return token
    path = environment.get("APPORTION_TOKEN_FILE")
    if not path:
        raise UnauthenticatedError(
            "no token is set",
            hint=(
                "Set APPORTION_TOKEN, or APPORTION_TOKEN_FILE to a file that holds it; "
                "`apportion up` writes one to STATE/root.token"
            ),
        )
    try:
        return Path(path).read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UnauthenticatedError(
            f"the token cannot be read: {reason}", field="APPORTION_TOKEN_FILE", given=path
        ) from error
