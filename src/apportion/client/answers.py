"""What comes back: JSON, or a problem, or nothing at all, each as what the client raises for it."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, cast

import httpx2

from apportion.errors import ApportionError, UnavailableError

_KINDS: Final = {kind.code: kind for kind in (ApportionError, *ApportionError.__subclasses__())}
_AWAY: Final = frozenset(
    {HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT}
)
_UNSENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_NO_SERVER: Final = "Is APPORTION_URL the address of an Apportion server?"


def json_of(response: httpx2.Response) -> Any:
    """Return what a good answer holds."""
    try:
        return response.json()
    except ValueError:
        raise ApportionError(f"{response.url} answered with no JSON", hint=_NO_SERVER) from None


def error_of(response: httpx2.Response) -> ApportionError:
    """Return the error that an answer tells of."""
    problem = _problem_of(response)
    if problem is None:
        kind = UnavailableError if response.status_code in _AWAY else ApportionError
        return kind(
            f"{response.url} answered {response.status_code} and no problem document",
            hint=_NO_SERVER,
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


def error_of_failure(url: str, failure: httpx2.TransportError) -> UnavailableError:
    """Return the error for a request that got no answer.

    Its details say ``sent: False`` where the server cannot have got it, and ``again: False`` where
    asking again would only take as long once more.
    """
    details: dict[str, object] = {}
    if isinstance(failure, _UNSENT):
        details["sent"] = False
    if isinstance(failure, httpx2.TimeoutException):
        details["again"] = False
        return UnavailableError(f"{url} did not answer in time", details=details)
    return UnavailableError(
        f"no server answers at {url}: {failure}",
        hint="Start one with `apportion up`, or set APPORTION_URL to where it is",
        details=details,
    )


def no_stream(response: httpx2.Response) -> ApportionError | None:
    """Return what is wrong with an answer that should be a stream of events."""
    if not response.is_success:
        return error_of(response)
    if not response.headers.get("Content-Type", "").startswith("text/event-stream"):
        return ApportionError(f"{response.url} answered with no event stream", hint=_NO_SERVER)
    return None


def as_asked(there: Mapping[str, Any], asked: Mapping[str, Any]) -> bool:
    """Tell whether an object is one version on and has all that an update of it asked for."""
    wanted = {name: value for name, value in asked.items() if value is not None}
    return there == {**there, **wanted, "version": asked["version"] + 1}


def mark_uncertain(error: ApportionError) -> None:
    """Say of a request that failed that a try without an answer may have done it all the same."""
    error.details["uncertain"] = True
    told = "A try that got no answer may have done it: look before you ask again"
    error.hint = told if error.hint is None else f"{error.hint}. {told}"


def _problem_of(response: httpx2.Response) -> dict[str, Any] | None:
    if not response.headers.get("Content-Type", "").startswith("application/problem+json"):
        return None
    problem = json_of(response)
    if isinstance(problem, dict) and "code" in problem:
        return cast("dict[str, Any]", problem)
    return None
