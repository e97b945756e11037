"""Reading a stored reservation back into the draft that it was placed from."""

from collections.abc import Mapping
from typing import Any

from apportion.authority.service import SYSTEM, Caller
from apportion.placement import Ask, DeviceAsk, Expression, Selector
from apportion.reservations.admission import Draft


def draft_of(row: Mapping[str, Any]) -> Draft:
    """Read a stored reservation back into the draft that it was placed from."""
    return Draft(
        id=row["id"],
        by=Caller(row["tenant_id"], SYSTEM.actor),
        caller=row["caller"],
        name=row["name"],
        candidates=tuple(row["candidates"]),
        ask=Ask(
            tuple(_device(device) for device in row["devices"]),
            row["vcpu_milli"],
            row["memory_mib"],
            together=row["placement"].get("together", "node"),
            apart=row["placement"].get("apart", False),
        ),
        devices=row["devices"],
        asked_start=row["asked_start"],
        asked_end=row["asked_end"],
        duration=row["duration"],
        pending_until=row["pending_until"],
        request_hash=row["request_hash"],
        created_at=row["created_at"],
        placement=row["placement"],
        members=row["members"],
        end_before=row["end_before"],
        open_ended=row["open_ended"],
        series_id=row["series_id"],
        priority=row["priority"],
        waiting=True,
        reason=row["reason"],
    )


def sooner_draft_of(row: Mapping[str, Any]) -> Draft:
    """Read one whose start is reserved: it looks for a sooner one, for as long as it is by now.

    One that was put off looks for one that is no sooner than it had, and ends when it does.
    """
    draft = draft_of(row)._replace(reserving=True, sooner_than=row["starts_at"])
    end = None if row["open_ended"] else row["ends_at"]
    if row["delayed_from"] is None:
        return draft._replace(duration=None if end is None else end - row["starts_at"])
    # In each pool a series lives on one quota: what one of it is charged there the others live on.
    candidates = draft.candidates if draft.series_id is None else (row["pool_id"],)
    return draft._replace(
        candidates=candidates,
        asked_start=row["delayed_from"],
        asked_end=end,
        duration=None,
    )


def _device(device: Mapping[str, Any]) -> DeviceAsk:
    expressions = device.get("selector", {}).get("matchExpressions", [])
    return DeviceAsk(
        device["class"],
        device["count"],
        device["units"],
        Selector(
            tuple(
                Expression(each["key"], each["op"], tuple(str(v) for v in each["values"]))
                for each in expressions
            )
        ),
    )
