"""Where webhooks may lead, in every spelling of an address, and how a signature is made."""

import base64
from datetime import UTC, datetime
from ipaddress import ip_network

import httpx2
import pytest

from apportion.errors import InvalidInputError
from apportion.webhooks.signing import message_id, secret_of, signed_headers
from apportion.webhooks.targets import RefusedAddressError, check_url, find_address

INNER = [
    "127.0.0.1",
    "127.1",
    "0x7f.1",
    "2130706433",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.0.1",
    "100.64.0.1",
    "169.254.169.254",
    "0.0.0.0",  # noqa: S104 - an address that is refused
    "224.0.0.1",
    "239.1.1.1",
    "240.0.0.1",
    "255.255.255.255",
    "[::1]",
    "[::]",
    "[::ffff:127.0.0.1]",
    "[::ffff:a9fe:a9fe]",
    "[::127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[64:ff9b::10.0.0.1]",
    "[2002:7f00:1::]",
    "[fe80::1]",
    "[fec0::1]",
    "[fd00:ec2::254]",
    "[ff02::1]",
]


@pytest.mark.parametrize("host", INNER)
def test_an_address_inside_is_refused_in_every_spelling(host):
    with pytest.raises(InvalidInputError, match="must not reach") as caught:
        check_url(f"https://{host}/hook", [])
    assert (caught.value.field, caught.value.given) == ("url", f"https://{host}/hook")


@pytest.mark.parametrize("host", ["8.8.8.8", "[2606:4700::1111]", "example.com", "localhost"])
def test_open_addresses_and_all_names_are_accepted(host):
    check_url(f"http://{host}:8080/a?b=c", [])


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.1.2.3", "10.0.0.0/8"),
        ("127.1", "127.0.0.0/8"),
        ("[fd00::1]", "fd00::/8"),
        ("[::ffff:10.1.2.3]", "10.0.0.0/8"),
    ],
)
def test_networks_that_the_server_allows_can_be_reached(host, network):
    check_url(f"http://{host}/", [ip_network(network)])
    with pytest.raises(InvalidInputError):
        check_url(f"http://{host}/", [ip_network("192.168.0.0/16")])


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.com/",
        "http:///path",
        "https://user:secret@example.com/",
        "https://example.com/#part",
        "https://example.com:0/",
        "https://example.com:65536/",
        "https://example.com:x/",
        "https://exa\x01mple.com/",
        "https://0177.0.0.1/",
        "nothing",
    ],
)
def test_what_is_no_address_of_http_is_refused_with_what_is(url):
    with pytest.raises(InvalidInputError) as caught:
        check_url(url, [])
    assert caught.value.allowed.startswith("https://HOST/PATH")


@pytest.mark.anyio
async def test_a_name_is_judged_by_what_it_stands_for_now():
    url = httpx2.URL("http://localhost:1234/")
    with pytest.raises(RefusedAddressError, match="localhost has no address"):
        await find_address(url, [])
    assert await find_address(url, [ip_network("127.0.0.0/8")]) == "127.0.0.1"
    with pytest.raises(OSError, match="not known"):
        await find_address(httpx2.URL("http://nowhere.invalid/"), [])


def test_a_signature_is_that_of_the_specifications_example():
    """The vector that the libraries of the Standard Webhooks project test with."""
    headers = signed_headers(
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        datetime.fromtimestamp(1614265330, UTC),
        b'{"test": 2432232314}',
    )
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert headers["webhook-timestamp"] == "1614265330"


def test_each_webhook_and_each_rotation_has_a_secret_of_its_own():
    keys = (b"k" * 32, b"l" * 32)
    secrets = {secret_of(key, name, version) for key in keys for name in "ab" for version in (1, 2)}
    assert len(secrets) == 8
    assert all(len(base64.b64decode(each.removeprefix("whsec_"))) == 32 for each in secrets)
    assert secret_of(keys[0], "a", 1) == secret_of(keys[0], "a", 1)


def test_what_is_signed_can_be_parted_in_one_way_only():
    assert "." not in message_id(2**62)
