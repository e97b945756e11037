"""Where a webhook may be sent: to addresses of the open network, or of networks that are allowed.

A tenant chooses the URL and this server makes the request, from inside a network that the tenant
cannot reach. So the host's addresses are looked up here, judged, and the one that passed is the one
that is connected to: a name that answers differently a second time gains nothing.
"""

import asyncio
import socket
from collections.abc import Sequence
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Final

import httpx2

from apportion.errors import InvalidInputError

Network = IPv4Network | IPv6Network
_Address = IPv4Address | IPv6Address

_TRANSLATED: Final = ip_network("64:ff9b::/96")
"""Addresses that a NAT64 gateway turns into the IPv4 address in their last 32 bits."""
_HTTP_PORTS: Final = {"http": 80, "https": 443}
_PORT_MAX: Final = 65535


class RefusedAddressError(Exception):
    """The host has no address that may be connected to."""


def check_url(text: str, networks: Sequence[Network]) -> None:
    """Refuse with InvalidInputError a URL that can never be sent to.

    A host's name is looked up only when something is sent: what it means may change.
    """
    try:
        url = httpx2.URL(text)
    except httpx2.InvalidURL as error:
        raise _refusal(f"is not a URL: {error}", text) from None
    if url.scheme not in _HTTP_PORTS or not url.host or url.userinfo or url.port == 0:
        raise _refusal("is not an address of HTTP", text)
    if url.port is not None and url.port > _PORT_MAX:
        raise _refusal("names a port that does not exist", text)
    if url.fragment:
        raise _refusal("has a part after # that is never sent", text)
    address = _literal(url.host)
    if address is not None and not _may_reach(address, networks):
        raise InvalidInputError(
            "leads into a network that webhooks must not reach",
            field="url",
            given=text,
            allowed="a public address, or one in the server's setting webhook_networks",
        )


async def find_address(url: httpx2.URL, networks: Sequence[Network]) -> str:
    """Return the address of a URL's host to connect to.

    Raises RefusedAddressError where it has only others, OSError where it has none.
    """
    loop = asyncio.get_running_loop()
    port = url.port or _HTTP_PORTS[url.scheme]
    host = url.raw_host.decode().strip("[]")
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    texts = [str(each[4][0]) for each in found]
    for text in texts:
        if _may_reach(ip_address(text), networks):
            return text
    raise RefusedAddressError(
        f"{url.host} has no address that webhooks may reach, only {', '.join(texts[:3])}"
    )


def _may_reach(address: _Address, networks: Sequence[Network]) -> bool:
    address = _inner(address)
    if any(address in network for network in networks):
        return True
    refused = address.is_multicast or address.is_reserved
    if isinstance(address, IPv6Address):
        refused = refused or address.is_site_local
    return address.is_global and not refused


def _inner(address: _Address) -> _Address:
    """Return the IPv4 address that an IPv6 address stands for, where it does."""
    if isinstance(address, IPv4Address):
        return address
    if address in _TRANSLATED:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _literal(host: str) -> _Address | None:
    """Read a host that is an address, in each spelling that a resolver takes: 127.1 and 0x7f.1."""
    try:
        return ip_address(host)
    except ValueError:
        pass
    try:
        return IPv4Address(socket.inet_aton(host))
    except (OSError, ValueError):
        return None


def _refusal(message: str, given: str) -> InvalidInputError:
    return InvalidInputError(
        message,
        field="url",
        given=given,
        allowed="https://HOST/PATH or http://HOST/PATH, without a user and without a #fragment",
    )
