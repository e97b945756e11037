"""What a server logs of its deliveries: no URL, which may hold a secret of the receiver's."""

import logging

import pytest
import structlog
from events_outbox import CALLER
from webhooks_receiver import LOCAL, receiving

from apportion.server.logs import configure_logging
from apportion.webhooks.dispatcher import Dispatcher
from apportion.webhooks.schemas import WebhookCreate
from apportion.webhooks.service import create_webhook

pytestmark = pytest.mark.anyio


@pytest.fixture
def logging_as_served(capsys):
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    configure_logging("info", "json")
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


async def test_a_delivery_is_logged_without_its_url(world, logging_as_served, capsys):
    with receiving() as receiver:
        request = WebhookCreate(name="hook", url=receiver.url)
        await create_webhook(world.runtime, CALLER, request, LOCAL)
        await Dispatcher(world.runtime, LOCAL).advance()
        assert receiver.received
    logging.getLogger("other").info("other libraries are heard")
    told = capsys.readouterr().err
    assert "other libraries are heard" in told
    assert "for=test" not in told
