"""What a request is made of: its address, token and tenant, its query and its body."""

import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlsplit

from pydantic import BaseModel

from apportion.errors import InvalidInputError, UnauthenticatedError
from apportion.quantities.windows import format_instant

Document = Mapping[str, Any]
"""A body as JSON has it: the server checks it, and says what is wrong with it."""
Query = Mapping[str, str | int | bool | list[str] | None]


def body_of(request: BaseModel | Document) -> dict[str, Any]:
    """Return a body as JSON has it."""
    if isinstance(request, BaseModel):
        return request.model_dump(mode="json", by_alias=True)
    return dict(request)


def keyed(request: BaseModel | Document) -> dict[str, Any]:
    """Return a body with an idempotency key, so that it may be sent again."""
    body = body_of(request)
    if body.get("idempotency_key") is None:
        body["idempotency_key"] = secrets.token_urlsafe(18)
    return body


def path_of(*parts: str) -> str:
    """Return a path under /v1; each part is one part of it, whatever characters it has."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def instant_of(instant: datetime | str | None) -> str | None:
    """Return an instant as the API writes it."""
    return instant if instant is None or isinstance(instant, str) else format_instant(instant)


def parameters_of(query: Query) -> tuple[tuple[str, str], ...]:
    """Return the parameters of a query; those that are None are left out."""
    pairs: list[tuple[str, str]] = []
    for name, value in query.items():
        values = value if isinstance(value, list) else [value]
        pairs += [(name, _text(each)) for each in values if each is not None]
    return tuple(pairs)


def headers_of(token: str, tenant: str | None) -> dict[str, str]:
    """Return the headers of every request.

    Raises UnauthenticatedError for what cannot be a token, InvalidInputError for what cannot be a
    tenant's id.
    """
    headers = {"Authorization": f"Bearer {_checked_token(token)}"}
    if tenant is not None:
        if not _is_one_word(tenant):
            raise InvalidInputError(
                "is no id of a tenant",
                field="tenant",
                given=tenant,
                allowed="lower case letters, digits and hyphens",
            )
        headers["Apportion-Tenant"] = tenant
    return headers


def checked_url(url: str) -> str:
    """Return the address of a server; InvalidInputError where it cannot be one."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or any(char.isspace() for char in url):
        raise InvalidInputError(
            "is not the address of a server",
            field="url",
            given=url,
            allowed="http://HOST:PORT or https://HOST:PORT",
        )
    return url.rstrip("/")


def _checked_token(token: str) -> str:
    if not _is_one_word(token):
        raise UnauthenticatedError(
            "the token is empty or has characters that no token has",
            field="token",
            hint="It is one word that begins with apt_",
        )
    return token


def _is_one_word(text: str) -> bool:
    return bool(text) and text.isascii() and text.isprintable() and " " not in text


def _text(value: str | int | bool) -> str:  # noqa: FBT001 - a value of a query, not a switch
    return str(value).lower() if isinstance(value, bool) else str(value)
