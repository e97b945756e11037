"""Routes of machines that join by themselves, and of what lets them in."""

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request

from apportion.doors.idempotency import KeyHeader, one_key
from apportion.doors.paging import Cursor, Filter, Limit, Page, cut, decode_cursor
from apportion.doors.route import Door, TheCaller, TheRuntime
from apportion.doors.signed import check_own_key
from apportion.nodes import service
from apportion.nodes.schemas import (
    EnrollAnswer,
    EnrollRequest,
    JoinTokenCreate,
    JoinTokenIssued,
    JoinTokenView,
    NodeView,
)

router = APIRouter(route_class=Door, tags=["nodes"])


class JoinTokenPage(Page[JoinTokenView]):
    """Join tokens by id."""


@router.post("/v1/join", summary="Join a pool as a machine that somebody vouches for")
async def enroll_node(runtime: TheRuntime, signed: Request, request: EnrollRequest) -> EnrollAnswer:
    await check_own_key(signed, service.key_of(request))
    return await service.enroll(runtime, signed.state.request_id, request)


@router.post(
    "/v1/pools/{pool_id}/join-tokens",
    status_code=201,
    summary="Create a token that lets one machine join; its secret is shown once",
)
async def create_join_token(
    runtime: TheRuntime,
    caller: TheCaller,
    pool_id: Annotated[str, Path()],
    request: JoinTokenCreate,
    key: KeyHeader = None,
) -> JoinTokenIssued:
    return await service.create_join_token(runtime, caller, pool_id, one_key(request, key))


@router.get("/v1/join-tokens", summary="List join tokens, without their secrets")
async def list_join_tokens(
    runtime: TheRuntime,
    caller: TheCaller,
    *,
    pool_id: Filter = None,
    state: Annotated[Literal["open", "used", "revoked", "expired"] | None, Query()] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> JoinTokenPage:
    [after] = decode_cursor("list_join_tokens", cursor, "")
    found = await service.list_join_tokens(
        runtime, caller, after=after, limit=limit + 1, pool_id=pool_id, state=state
    )
    items, following = cut("list_join_tokens", found, limit, lambda token: [token.id])
    return JoinTokenPage(items=items, next_cursor=following)


@router.delete("/v1/join-tokens/{join_token_id}", summary="Let a join token let nobody in")
async def revoke_join_token(
    runtime: TheRuntime, caller: TheCaller, join_token_id: Annotated[str, Path()]
) -> JoinTokenView:
    return await service.revoke_join_token(runtime, caller, join_token_id)


@router.post("/v1/nodes/{node_id}/revoke", summary="Refuse a node until it joins anew")
async def revoke_node(
    runtime: TheRuntime, caller: TheCaller, node_id: Annotated[str, Path()]
) -> NodeView:
    await service.revoke_node(runtime, caller, node_id)
    return await service.get_node(runtime, caller, node_id)
