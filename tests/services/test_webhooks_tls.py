"""Over TLS the certificate must be that of the URL's host, though an address is connected to."""

import ssl
import subprocess

import pytest
from events_outbox import CALLER
from webhooks_receiver import LOCAL, receiving

from apportion.webhooks.dispatcher import Dispatcher
from apportion.webhooks.schemas import WebhookCreate
from apportion.webhooks.service import create_webhook, list_deliveries

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Give a certificate and key for localhost, and one for another host."""
    made = {}
    for host in ("localhost", "elsewhere.test"):
        path = tmp_path_factory.mktemp(host)
        made[host] = path / "cert.pem", path / "key.pem"
        command = (
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1"
            f" -subj /CN={host} -addext subjectAltName=DNS:{host} -out cert.pem -keyout key.pem"
        )
        subprocess.run(command.split(), check=True, capture_output=True, cwd=path)
    return made


async def deliver(world, certificates, host, *, trusted):
    """Send to localhost, where a receiver has the certificate of a host; return what came of it."""
    certificate, key = certificates[host]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    asked = []
    context.sni_callback = lambda _, name, __: asked.append(name)
    trust = ssl.create_default_context()
    if trusted:
        trust.load_verify_locations(certificate)
    with receiving() as receiver:
        receiver.socket = context.wrap_socket(receiver.socket, server_side=True)
        url = receiver.url.replace("http://127.0.0.1", "https://localhost")
        issued = await create_webhook(
            world.runtime, CALLER, WebhookCreate(name="hook", url=url), LOCAL
        )
        await Dispatcher(world.runtime, LOCAL, trust=trust).advance()
        left = await list_deliveries(world.runtime, CALLER, issued.webhook.id)
        return asked, receiver.received, [each.last_error for each in left]


async def test_the_host_is_asked_for_by_its_name(world, certificates):
    asked, received, errors = await deliver(world, certificates, "localhost", trusted=True)
    assert (asked, len(received), errors) == (["localhost"], 1, [])
    assert received[0].headers["host"].startswith("localhost:")


@pytest.mark.parametrize(("host", "trusted"), [("localhost", False), ("elsewhere.test", True)])
async def test_a_certificate_that_is_not_the_hosts_gets_nothing(world, certificates, host, trusted):
    _, received, [error] = await deliver(world, certificates, host, trusted=trusted)
    assert received == []
    assert error.startswith("cannot connect: ")
    assert "certificate verify failed" in error
