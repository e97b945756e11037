"""Routes of tenants, tokens, access policies and roles, and of who is calling."""

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query

from apportion.authority.actions import Role
from apportion.doors.idempotency import KeyHeader, one_key
from apportion.doors.paging import Cursor, Filter, Limit, Page, Truth, cut, decode_cursor
from apportion.doors.route import Door, TheCaller, TheRuntime
from apportion.tenants import policies, rulings, service, tokens
from apportion.tenants.schemas import (
    CallerView,
    Deleted,
    PolicyCheck,
    PolicyCreate,
    PolicyRuling,
    PolicyUpdate,
    PolicyView,
    RoleView,
    TenantCreate,
    TenantDeleted,
    TenantUpdate,
    TenantView,
    TokenCreate,
    TokenIssued,
    TokenRotate,
    TokenView,
)

router = APIRouter(route_class=Door, tags=["tenants"])

TenantPath = Annotated[str, Path()]
TokenPath = Annotated[str, Path()]
PolicyPath = Annotated[str, Path()]


class TenantPage(Page[TenantView]):
    """Tenants by id."""


class TokenPage(Page[TokenView]):
    """Tokens by id."""


class PolicyPage(Page[PolicyView]):
    """Policies by id."""


class RolePage(Page[RoleView]):
    """Roles by name."""


@router.get("/v1/caller", summary="Show who is calling, and what the token may do at most")
async def get_caller(caller: TheCaller) -> CallerView:
    own = caller.authority
    assert own is not None  # noqa: S101 - the door lets nobody in without one
    return CallerView(
        tenant_id=caller.tenant_id,
        token_id=own.token_id,
        home_tenant_id=own.home,
        role=own.role,
        actions=list(own.actions),
        expires_at=own.expires_at,
    )


@router.post("/v1/tenants", status_code=201, summary="Create a tenant below the caller's")
async def create_tenant(
    runtime: TheRuntime, caller: TheCaller, request: TenantCreate
) -> TenantView:
    return await service.create_tenant(runtime, caller, request)


@router.get("/v1/tenants", summary="List the caller's tenant and those below it")
async def list_tenants(
    runtime: TheRuntime,
    caller: TheCaller,
    *,
    parent_id: Filter = None,
    name: Filter = None,
    include_deleted: Truth = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> TenantPage:
    [after] = decode_cursor("list_tenants", cursor, "")
    found = await service.list_tenants(
        runtime,
        caller,
        after=after,
        limit=limit + 1,
        parent_id=parent_id,
        name=name,
        include_deleted=include_deleted is True,
    )
    items, following = cut("list_tenants", found, limit, lambda tenant: [tenant.id])
    return TenantPage(items=items, next_cursor=following)


@router.get("/v1/tenants/{tenant_id}", summary="Show a tenant")
async def get_tenant(runtime: TheRuntime, caller: TheCaller, tenant_id: TenantPath) -> TenantView:
    return await service.get_tenant(runtime, caller, tenant_id)


@router.patch("/v1/tenants/{tenant_id}", summary="Rename a tenant")
async def update_tenant(
    runtime: TheRuntime, caller: TheCaller, tenant_id: TenantPath, request: TenantUpdate
) -> TenantView:
    return await service.update_tenant(runtime, caller, tenant_id, request)


@router.delete("/v1/tenants/{tenant_id}", summary="Delete a tenant, and end what it has")
async def delete_tenant(
    runtime: TheRuntime, caller: TheCaller, tenant_id: TenantPath
) -> TenantDeleted:
    return await service.delete_tenant(runtime, caller, tenant_id)


@router.post("/v1/tokens", status_code=201, summary="Create a token; its secret is shown once")
async def create_token(
    runtime: TheRuntime, caller: TheCaller, request: TokenCreate, key: KeyHeader = None
) -> TokenIssued:
    return await tokens.create_token(runtime, caller, one_key(request, key))


@router.get("/v1/tokens", summary="List tokens, without their secrets")
async def list_tokens(
    runtime: TheRuntime,
    caller: TheCaller,
    *,
    state: Annotated[Literal["active", "expired", "revoked"] | None, Query()] = None,
    role: Annotated[Role | None, Query()] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> TokenPage:
    [after] = decode_cursor("list_tokens", cursor, "")
    found = await tokens.list_tokens(
        runtime, caller, after=after, limit=limit + 1, state=state, role=role
    )
    items, following = cut("list_tokens", found, limit, lambda token: [token.id])
    return TokenPage(items=items, next_cursor=following)


@router.get("/v1/tokens/{token_id}", summary="Show a token, without its secret")
async def get_token(runtime: TheRuntime, caller: TheCaller, token_id: TokenPath) -> TokenView:
    return await tokens.get_token(runtime, caller, token_id)


@router.post("/v1/tokens/{token_id}/rotate", summary="Give a token a new secret, shown once")
async def rotate_token(
    runtime: TheRuntime, caller: TheCaller, token_id: TokenPath, request: TokenRotate | None = None
) -> TokenIssued:
    return await tokens.rotate_token(runtime, caller, token_id, request or TokenRotate())


@router.delete("/v1/tokens/{token_id}", summary="Revoke a token")
async def revoke_token(runtime: TheRuntime, caller: TheCaller, token_id: TokenPath) -> TokenView:
    return await tokens.revoke_token(runtime, caller, token_id)


@router.post("/v1/policies", status_code=201, summary="Add an access policy to the tenant")
async def create_policy(
    runtime: TheRuntime, caller: TheCaller, request: PolicyCreate, key: KeyHeader = None
) -> PolicyView:
    return await policies.create_policy(runtime, caller, one_key(request, key))


@router.get("/v1/policies", summary="List the tenant's own access policies")
async def list_policies(
    runtime: TheRuntime, caller: TheCaller, limit: Limit = 100, cursor: Cursor = None
) -> PolicyPage:
    [after] = decode_cursor("list_policies", cursor, "")
    found = await policies.list_policies(runtime, caller, after=after, limit=limit + 1)
    items, following = cut("list_policies", found, limit, lambda policy: [policy.id])
    return PolicyPage(items=items, next_cursor=following)


@router.post("/v1/policies/check", summary="Explain how an action is decided")
async def check_policy(
    runtime: TheRuntime, caller: TheCaller, request: PolicyCheck
) -> PolicyRuling:
    return await rulings.check(runtime, caller, request)


@router.get("/v1/policies/{policy_id}", summary="Show an access policy")
async def get_policy(runtime: TheRuntime, caller: TheCaller, policy_id: PolicyPath) -> PolicyView:
    return await policies.get_policy(runtime, caller, policy_id)


@router.put("/v1/policies/{policy_id}", summary="Replace an access policy's text or description")
async def update_policy(
    runtime: TheRuntime, caller: TheCaller, policy_id: PolicyPath, request: PolicyUpdate
) -> PolicyView:
    return await policies.update_policy(runtime, caller, policy_id, request)


@router.delete("/v1/policies/{policy_id}", summary="Remove an access policy")
async def delete_policy(runtime: TheRuntime, caller: TheCaller, policy_id: PolicyPath) -> Deleted:
    return await policies.delete_policy(runtime, caller, policy_id)


@router.get("/v1/roles", summary="List the built-in roles and what each may do")
async def list_roles(limit: Limit = 100, cursor: Cursor = None) -> RolePage:
    [after] = decode_cursor("list_roles", cursor, "")
    found = [role for role in policies.list_roles() if role.role > after]
    items, following = cut("list_roles", found, limit, lambda role: [role.role])
    return RolePage(items=items, next_cursor=following)
