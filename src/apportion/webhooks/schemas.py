"""What makes a webhook, and how it and its deliveries are shown."""

from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from apportion.doors.schemas import IdempotencyKey, Name, Schema, Version, View
from apportion.events.schemas import EventView

TypePrefix = Annotated[str, Field(pattern=r"^[a-z]+(\.[a-z]+)*\.?$", max_length=100)]
Types = Annotated[list[TypePrefix], Field(max_length=50)]
Url = Annotated[str, Field(min_length=1, max_length=2000, pattern=r"^https?://[^\s@]+$")]


class WebhookCreate(Schema):
    """Where to send events whose type begins with one of ``types``; all, where it is empty."""

    name: Name
    url: Url
    types: Types = Field(default_factory=list[TypePrefix])
    enabled: Annotated[bool, Field(strict=True)] = True
    idempotency_key: IdempotencyKey | None = None


class WebhookUpdate(Schema):
    """What can be changed of a webhook; ``version`` is the one that was read."""

    version: Version
    url: Url | None = None
    types: Types | None = None
    enabled: Annotated[bool, Field(strict=True)] | None = None


class WebhookView(View):
    """A webhook, with how many events wait for it and how many are dead."""

    id: str
    tenant_id: str
    name: str
    url: str
    types: list[str]
    enabled: bool
    version: int
    pending: int
    dead: int
    created_at: AwareDatetime
    updated_at: AwareDatetime


class WebhookIssued(View):
    """A webhook with its signing secret, which is shown this once."""

    secret: str
    webhook: WebhookView


class WebhookDeleted(View):
    """Whether there was such a webhook."""

    removed: bool


class DeliveryView(View):
    """An event that is on its way to a webhook, or dead: tried for too long."""

    id: str
    webhook_id: str
    state: Literal["pending", "dead"]
    attempts: int
    next_at: AwareDatetime
    last_status: int | None
    last_error: str | None
    created_at: AwareDatetime
    event: EventView
