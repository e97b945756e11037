"""One attempt to deliver: a POST to a checked address, and what came of it in one short line."""

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from importlib.metadata import version
from typing import Final

import httpx2

from apportion.webhooks.targets import Network, RefusedAddressError, find_address

MEDIA_TYPE: Final = "application/cloudevents+json"
_READ_MAX: Final = 4096
"""So much of an answer is read: enough to use the connection again, and never kept."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an attempt came to: the status of the answer, and what is wrong; None if nothing."""

    status: int | None
    error: str | None

    @property
    def gone(self) -> bool:
        """Tell whether the receiver said that it wants no more."""
        return self.status == HTTPStatus.GONE


def open_client(trust: ssl.SSLContext) -> httpx2.AsyncClient:
    """Return a client for one webhook alone, which trusts the authorities of a context.

    Connections are kept by address, so webhooks on one address must not share them: what was
    promised by one host's certificate is not another one's. A proxy of the environment would be
    told the name, and look it up anew.
    """
    return httpx2.AsyncClient(
        verify=trust,
        trust_env=False,
        follow_redirects=False,
        headers={"User-Agent": f"apportion/{version('apportion')}"},
    )


async def send(
    client: httpx2.AsyncClient,
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    networks: Sequence[Network],
    within: timedelta,
) -> Outcome:
    """Try once, for so long in all."""
    try:
        async with asyncio.timeout(within.total_seconds()):
            return await _post(client, httpx2.URL(url), body, headers, networks)
    except (TimeoutError, httpx2.TimeoutException):
        return Outcome(None, f"no answer within {within // timedelta(seconds=1)} s")
    except RefusedAddressError as error:
        return Outcome(None, str(error))
    except httpx2.ConnectError as error:
        return Outcome(None, _line(f"cannot connect: {error}"))
    except (httpx2.HTTPError, httpx2.InvalidURL):
        # Not in its own words: those hold parts of what was answered.
        return Outcome(None, "the connection broke, or what answers there does not speak HTTP")
    except (OSError, ValueError):
        return Outcome(None, "the host has no address")


async def _post(
    client: httpx2.AsyncClient,
    url: httpx2.URL,
    body: bytes,
    headers: Mapping[str, str],
    networks: Sequence[Network],
) -> Outcome:
    address = await find_address(url, networks)
    request = client.build_request(
        "POST",
        url.copy_with(host=address),
        content=body,
        headers={**headers, "Content-Type": MEDIA_TYPE, "Host": url.netloc.decode()},
        extensions={"sni_hostname": url.raw_host.decode().strip("[]")},
    )
    response = await client.send(request, stream=True)
    try:
        read = 0
        async for chunk in response.aiter_raw():
            read += len(chunk)
            if read > _READ_MAX:
                break
    finally:
        await response.aclose()
    return _outcome(response)


def _outcome(response: httpx2.Response) -> Outcome:
    status = response.status_code
    if response.is_success:
        return Outcome(status, None)
    told = f"answered {status} {httpx2.codes.get_reason_phrase(status)}".strip()
    if response.is_redirect:
        told += ": redirects are not followed"
    return Outcome(status, told)


def _line(text: str) -> str:
    return " ".join(text.split())[:200]
