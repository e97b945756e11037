"""From a request to a draft: admitted to its pools, allowed by policies, held to windows."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from apportion.authority.service import Caller
from apportion.placement import DeviceAsk
from apportion.reservations.admission import Draft, admit, attributes_of, candidates
from apportion.reservations.arrangement import check_exact, stored_placement
from apportion.reservations.rights import Rights
from apportion.reservations.schemas import DeviceRequest, PiecesAsk, ReservationAsk
from apportion.reservations.windows import hold_to_pools, read_window


@dataclass(frozen=True, slots=True)
class Identity:
    """The id that a reservation gets, and the hash of what it was asked with."""

    id: str
    request_hash: bytes


NOBODY = Identity("", b"")
"""Of a draft that becomes no reservation: it is only looked where it could be placed."""


class Drafting:
    """Admits the requests of one caller; what those of a batch have in common is looked at once.

    Requests that differ by their names alone are alike: whether one may have a place, and where it
    may be, goes for all of them, as of the instant of the first.
    """

    def __init__(self, caller: Caller, rights: Rights) -> None:
        self._caller = caller
        self._rights = rights
        self._alike: dict[str, Draft] = {}

    def draft(self, request: ReservationAsk, text: str, identity: Identity, now: datetime) -> Draft:
        """Return the draft of a request, whose ``asked_text`` is given; raises as `admitted`."""
        alike = self._alike.get(text)
        if alike is None:
            draft = admitted(self._caller, request, self._rights, identity, now)
            self._alike[text] = draft
            return draft
        return alike._replace(
            id=identity.id,
            name=request.name,
            request_hash=identity.request_hash,
            pending_until=alike.pending_until + (now - alike.created_at),
            created_at=now,
        )


def named_pools(request: PiecesAsk) -> list[str]:
    """Return the pools that a request names, before it is known whether it does so rightly."""
    if request.pool_id is not None:
        return [request.pool_id]
    return request.pool_ids or []


def admitted(
    caller: Caller, request: ReservationAsk, rights: Rights, identity: Identity, now: datetime
) -> Draft:
    """Return the draft of a request.

    Raises InvalidInputError, NotFoundError (a pool), ForbiddenError. What becomes no reservation
    may begin whenever its pools take it.
    """
    named = candidates(request)
    records = rights.find(named)
    ask = admit(request, records)
    check_exact(request)
    members = 1 if request.gang is None else request.gang.members
    window = read_window(request, now)
    rights.check(records, attributes_of(ask, window.length(now), members=members))
    window = hold_to_pools(window, records, request, now, movable=identity is NOBODY)
    return Draft(
        id=identity.id,
        by=caller,
        caller=caller.actor,
        name=request.name,
        candidates=tuple(named),
        ask=ask,
        devices=[
            _stored(device, parsed)
            for device, parsed in zip(request.devices, ask.devices, strict=True)
        ],
        placement=stored_placement(request),
        members=members,
        asked_start=window.start,
        asked_end=window.end,
        duration=window.duration,
        end_before=window.end_before,
        open_ended=window.open_ended,
        pending_until=now + max(pool.policy.max_pending for pool in records),
        request_hash=identity.request_hash,
        created_at=now,
    )


def _stored(device: DeviceRequest, ask: DeviceAsk) -> Mapping[str, Any]:
    """Write a device request as it is kept: amounts as given, selector values as they were read."""
    expressions = [
        {"key": each.key, "op": each.op, "values": list(each.values)}
        for each in ask.selector.expressions
    ]
    return {
        "class": ask.cls,
        "count": ask.count,
        "units": ask.units,
        **({"sharing": device.sharing} if device.sharing else {}),
        **({"selector": {"matchExpressions": expressions}} if expressions else {}),
    }
