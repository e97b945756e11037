"""A webhook, whoever it is sent to, and the dispatcher that sends."""

from events_outbox import CALLER
from webhooks_receiver import LOCAL

from apportion.webhooks import service
from apportion.webhooks.dispatcher import Dispatcher
from apportion.webhooks.schemas import WebhookCreate


class Hooks:
    """A webhook of root, made after its own creation was told, and a dispatcher."""

    def __init__(self, world, receiver):
        self.world = world
        self.runtime = world.runtime
        self.receiver = receiver
        self.dispatcher = Dispatcher(world.runtime, LOCAL)

    async def make(self, name="hook", url=None, caller=CALLER, **fields):
        request = WebhookCreate(name=name, url=url or self.receiver.url, **fields)
        issued = await service.create_webhook(self.runtime, caller, request, LOCAL)
        await self.dispatcher.advance()
        self.receiver.received.clear()
        return issued

    async def deliveries(self, issued, **filters):
        return await service.list_deliveries(
            self.runtime, CALLER, issued.webhook.id, limit=1000, **filters
        )

    async def get(self, issued):
        return await service.get_webhook(self.runtime, CALLER, issued.webhook.id)

    async def rows(self):
        return await self.world.rows("SELECT * FROM deliveries ORDER BY id")
