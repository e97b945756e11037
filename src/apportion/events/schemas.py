"""How events and audit records are shown."""

from typing import Any, Literal

from pydantic import AwareDatetime

from apportion.doors.schemas import View


class EventView(View):
    """One thing that happened, as a CloudEvent 1.0 in JSON.

    ``id`` is its place in the order of events: what ``Last-Event-ID`` takes. ``subject`` is the
    object's id; ``tenantid``, ``actor`` and ``requestid`` are extension attributes.
    """

    specversion: Literal["1.0"] = "1.0"
    id: str
    source: str
    type: str
    subject: str
    time: AwareDatetime
    datacontenttype: Literal["application/json"] = "application/json"
    tenantid: str
    actor: str
    requestid: str | None = None
    data: dict[str, Any]


class AuditView(View):
    """Who did what to which object, with the object before and after."""

    id: str
    time: AwareDatetime
    tenant_id: str
    actor: str
    request_id: str | None
    action: str
    """The event's type: ``pool.updated``."""
    subject: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
