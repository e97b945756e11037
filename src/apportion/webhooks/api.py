"""Routes of webhooks and of what could not be delivered to them."""

from collections.abc import Sequence
from typing import Annotated, Literal, cast

from fastapi import APIRouter, Depends, Path, Query, Request

from apportion.doors.idempotency import KeyHeader, one_key
from apportion.doors.paging import Cursor, Limit, Page, bad_cursor, cut, decode_cursor
from apportion.doors.route import Door, TheCaller, TheRuntime
from apportion.webhooks import service
from apportion.webhooks.schemas import (
    DeliveryView,
    WebhookCreate,
    WebhookDeleted,
    WebhookIssued,
    WebhookUpdate,
    WebhookView,
)
from apportion.webhooks.targets import Network

router = APIRouter(route_class=Door, tags=["webhooks"])

_DIGITS_MAX = 18


class WebhookPage(Page[WebhookView]):
    """Webhooks by id."""


class DeliveryPage(Page[DeliveryView]):
    """Deliveries, oldest first."""


async def networks_of(request: Request) -> Sequence[Network]:
    """Return the networks that webhooks may reach beside the open one."""
    return cast("Sequence[Network]", request.app.state.webhook_networks)


Networks = Annotated[Sequence[Network], Depends(networks_of)]
WebhookId = Annotated[str, Path()]


@router.post("/v1/webhooks", status_code=201, summary="Be told of events; shows the secret, once")
async def create_webhook(
    runtime: TheRuntime,
    caller: TheCaller,
    networks: Networks,
    request: WebhookCreate,
    key: KeyHeader = None,
) -> WebhookIssued:
    return await service.create_webhook(runtime, caller, one_key(request, key), networks)


@router.get("/v1/webhooks", summary="List webhooks")
async def list_webhooks(
    runtime: TheRuntime, caller: TheCaller, limit: Limit = 100, cursor: Cursor = None
) -> WebhookPage:
    [after] = decode_cursor("list_webhooks", cursor, "")
    found = await service.list_webhooks(runtime, caller, after=after, limit=limit + 1)
    items, following = cut("list_webhooks", found, limit, lambda each: [each.id])
    return WebhookPage(items=items, next_cursor=following)


@router.get("/v1/webhooks/{webhook_id}", summary="Show a webhook and what waits for it")
async def get_webhook(runtime: TheRuntime, caller: TheCaller, webhook_id: WebhookId) -> WebhookView:
    return await service.get_webhook(runtime, caller, webhook_id)


@router.patch("/v1/webhooks/{webhook_id}", summary="Change a webhook, or disable it")
async def update_webhook(
    runtime: TheRuntime,
    caller: TheCaller,
    networks: Networks,
    webhook_id: WebhookId,
    request: WebhookUpdate,
) -> WebhookView:
    return await service.update_webhook(runtime, caller, webhook_id, request, networks)


@router.delete("/v1/webhooks/{webhook_id}", summary="Remove a webhook, and what waits for it")
async def delete_webhook(
    runtime: TheRuntime, caller: TheCaller, webhook_id: WebhookId
) -> WebhookDeleted:
    await service.delete_webhook(runtime, caller, webhook_id)
    return WebhookDeleted(removed=True)


@router.post("/v1/webhooks/{webhook_id}/rotate", summary="Replace the secret; shows it, once")
async def rotate_webhook_secret(
    runtime: TheRuntime, caller: TheCaller, webhook_id: WebhookId
) -> WebhookIssued:
    return await service.rotate_secret(runtime, caller, webhook_id)


@router.get(
    "/v1/webhooks/{webhook_id}/deliveries", summary="List what is on its way, or could not be sent"
)
async def list_deliveries(
    runtime: TheRuntime,
    caller: TheCaller,
    webhook_id: WebhookId,
    *,
    state: Annotated[Literal["pending", "dead"] | None, Query()] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> DeliveryPage:
    [after] = decode_cursor("list_deliveries", cursor, "0")
    if not (after.isascii() and after.isdigit() and len(after) <= _DIGITS_MAX):
        raise bad_cursor(cursor or "")
    found = await service.list_deliveries(
        runtime, caller, webhook_id, after=int(after), limit=limit + 1, state=state
    )
    items, following = cut("list_deliveries", found, limit, lambda each: [each.id])
    return DeliveryPage(items=items, next_cursor=following)


@router.post(
    "/v1/webhooks/{webhook_id}/deliveries/{delivery_id}/resend", summary="Send a dead one again"
)
async def resend_delivery(
    runtime: TheRuntime,
    caller: TheCaller,
    webhook_id: WebhookId,
    delivery_id: Annotated[str, Path()],
) -> DeliveryView:
    return await service.resend_delivery(runtime, caller, webhook_id, delivery_id)
