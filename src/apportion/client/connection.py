"""Requests to a server: the token, retries, and problems as the errors that they were."""

import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, cast
from urllib.parse import urlsplit

import httpx2

from apportion.errors import (
    ApportionError,
    InvalidInputError,
    UnauthenticatedError,
    UnavailableError,
)

ATTEMPTS: Final = 3
_FIRST_PAUSE_SECONDS: Final = 0.1
_PAUSE_SECONDS_MAX: Final = 5
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_KINDS: Final = {kind.code: kind for kind in (ApportionError, *ApportionError.__subclasses__())}
_AWAY: Final = frozenset(
    {HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT}
)

Query = Mapping[str, str | int | bool | list[str] | None]


class Connection:
    """A server at a URL, and how to ask it.

    Every operation of the API may be repeated (creating ones carry an idempotency key), so what a
    broken connection or an unavailable server swallowed is asked again, at most three times in all.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        timeout_seconds: int,
        transport: httpx2.BaseTransport | None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.url = _checked_url(url)
        self._sleep = sleep
        self._http = httpx2.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {_checked_token(token)}"},
            timeout=timeout_seconds,
            transport=transport,
            # A proxy of the environment cannot reach this machine's own loopback.
            trust_env=urlsplit(self.url).hostname not in _LOOPBACK,
        )

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def ask(
        self, method: str, path: str, *, query: Query | None = None, body: object = None
    ) -> Any:
        """Return the JSON answer; raises the error that the server told of."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._once(method, path, query or {}, body)
            except UnavailableError as error:
                if attempt == ATTEMPTS or not error.details.get("again", True):
                    raise
                asked = error.details.get("retry_after_seconds")
                pause = _FIRST_PAUSE_SECONDS * 2 ** (attempt - 1)
                self._sleep(min(asked, _PAUSE_SECONDS_MAX) if isinstance(asked, int) else pause)
        raise AssertionError("the last attempt returns or raises")

    def _once(self, method: str, path: str, query: Query, body: object) -> Any:
        try:
            response = self._http.request(method, path, params=_parameters(query), json=body)
        except httpx2.TimeoutException as error:
            # It may still be at work; asking again would only wait as long once more.
            raise UnavailableError(
                f"{self.url} did not answer in time", details={"again": False}
            ) from error
        except httpx2.TransportError as error:
            raise UnavailableError(
                f"no server answers at {self.url}: {error}",
                hint="Start one with `apportion up`, or set APPORTION_URL to where it is",
            ) from error
        if not response.is_success:
            raise _error_of(response)
        return _json_of(response)


def _parameters(query: Query) -> tuple[tuple[str, str], ...]:
    pairs: list[tuple[str, str]] = []
    for name, value in query.items():
        values = value if isinstance(value, list) else [value]
        pairs += [(name, _text(each)) for each in values if each is not None]
    return tuple(pairs)


def _text(value: str | int | bool) -> str:  # noqa: FBT001 - a value of a query, not a switch
    return str(value).lower() if isinstance(value, bool) else str(value)


def _json_of(response: httpx2.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        raise ApportionError(
            f"{response.url} answered with no JSON",
            hint="Is APPORTION_URL the address of an Apportion server?",
        ) from None


def _error_of(response: httpx2.Response) -> ApportionError:
    problem = _problem_of(response)
    if problem is None:
        kind = UnavailableError if response.status_code in _AWAY else ApportionError
        return kind(
            f"{response.url} answered {response.status_code} and no problem document",
            hint="Is APPORTION_URL the address of an Apportion server?",
        )
    details = {**problem.get("details", {}), "request_id": problem.get("request_id")}
    pause = response.headers.get("Retry-After", "")
    if pause.isdigit():
        details["retry_after_seconds"] = int(pause)
    return error_of_problem(problem, details)


def error_of_problem(
    problem: Mapping[str, Any], details: Mapping[str, object] | None = None
) -> ApportionError:
    """Return the error that a problem document tells of."""
    field = problem.get("field")
    message = str(problem.get("detail", problem.get("title", "")))
    return _KINDS.get(problem["code"], ApportionError)(
        message.removeprefix(f"{field}: "),
        field=field,
        given=problem.get("given"),
        allowed=problem.get("allowed"),
        hint=problem.get("hint"),
        details=problem.get("details") if details is None else details,
    )


def _problem_of(response: httpx2.Response) -> dict[str, Any] | None:
    if not response.headers.get("Content-Type", "").startswith("application/problem+json"):
        return None
    problem = _json_of(response)
    if isinstance(problem, dict) and "code" in problem:
        return cast("dict[str, Any]", problem)
    return None


def _checked_url(url: str) -> str:
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
    if not token or not token.isascii() or any(char.isspace() for char in token):
        raise UnauthenticatedError(
            "the token is empty or has characters that no token has",
            field="token",
            hint="It is one word that begins with apt_",
        )
    return token
