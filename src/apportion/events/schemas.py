"""How events are shown."""

from typing import Any

from pydantic import AwareDatetime, BaseModel


class EventView(BaseModel):
    """One thing that happened: its type, the object's id, who did it, and facts."""

    id: int
    type: str
    tenant_id: str
    subject: str
    actor: str
    data: dict[str, Any]
    occurred_at: AwareDatetime
