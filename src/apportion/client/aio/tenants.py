"""Tenants, tokens and access policies."""

from typing import Literal

from apportion.authority.actions import Role
from apportion.client.aio.asking import AsyncAsking
from apportion.client.aio.page import AsyncListing
from apportion.client.requests import Document, body_of, keyed, path_of
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


class AsyncTenants(AsyncAsking):
    """What the API offers about tenants and their access."""

    async def get_caller(self) -> CallerView:
        """Show who the token stands for, and what it may do at all."""
        return await self._send("GET", path_of("caller"), CallerView)

    async def create_tenant(self, request: TenantCreate | Document) -> TenantView:
        """Create a tenant under the caller's own, or under one below it."""
        return await self._send("POST", path_of("tenants"), TenantView, body_of(request))

    def list_tenants(
        self,
        *,
        parent_id: str | None = None,
        name: str | None = None,
        include_deleted: bool | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> AsyncListing[TenantView]:
        """List the caller's tenant and those below it by id."""
        query = {
            "parent_id": parent_id,
            "name": name,
            "include_deleted": include_deleted,
            "limit": limit,
        }
        return self._list(path_of("tenants"), TenantView, query, cursor)

    async def get_tenant(self, tenant_id: str) -> TenantView:
        """Show a tenant."""
        return await self._send("GET", path_of("tenants", tenant_id), TenantView)

    async def update_tenant(self, tenant_id: str, request: TenantUpdate | Document) -> TenantView:
        """Rename a tenant."""
        path = path_of("tenants", tenant_id)
        return await self._send("PATCH", path, TenantView, body_of(request))

    async def delete_tenant(self, tenant_id: str) -> TenantDeleted:
        """Delete a tenant: its pools are archived, its reservations end, its tokens stop."""
        return await self._send("DELETE", path_of("tenants", tenant_id), TenantDeleted)

    async def create_token(self, request: TokenCreate | Document) -> TokenIssued:
        """Issue a token; its secret is in this answer and never shown again."""
        return await self._send("POST", path_of("tokens"), TokenIssued, keyed(request))

    def list_tokens(
        self,
        *,
        state: Literal["active", "expired", "revoked"] | None = None,
        role: Role | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> AsyncListing[TokenView]:
        """List the tenant's tokens, without their secrets."""
        query = {"state": state, "role": role, "limit": limit}
        return self._list(path_of("tokens"), TokenView, query, cursor)

    async def get_token(self, token_id: str) -> TokenView:
        """Show a token without its secret."""
        return await self._send("GET", path_of("tokens", token_id), TokenView)

    async def rotate_token(
        self, token_id: str, request: TokenRotate | Document | None = None
    ) -> TokenIssued:
        """Give a token a new secret; the earlier one stops, at once or after the overlap.

        It is not repeated where it may have been done: another new secret would end the overlap.
        """
        path = path_of("tokens", token_id, "rotate")
        body = body_of(request or {})
        return await self._send("POST", path, TokenIssued, body, repeat="unsent")

    async def revoke_token(self, token_id: str) -> TokenView:
        """Stop a token for good."""
        return await self._send("DELETE", path_of("tokens", token_id), TokenView)

    async def create_policy(self, request: PolicyCreate | Document) -> PolicyView:
        """Add an access policy, which holds for the tenant and all below it."""
        return await self._send("POST", path_of("policies"), PolicyView, keyed(request))

    def list_policies(
        self, *, limit: int = 100, cursor: str | None = None
    ) -> AsyncListing[PolicyView]:
        """List the tenant's added access policies."""
        return self._list(path_of("policies"), PolicyView, {"limit": limit}, cursor)

    async def get_policy(self, policy_id: str) -> PolicyView:
        """Show an access policy."""
        return await self._send("GET", path_of("policies", policy_id), PolicyView)

    async def update_policy(self, policy_id: str, request: PolicyUpdate | Document) -> PolicyView:
        """Change the version of an access policy that was read."""
        return await self._update("PUT", path_of("policies", policy_id), PolicyView, request)

    async def delete_policy(self, policy_id: str) -> Deleted:
        """Remove an access policy."""
        return await self._send("DELETE", path_of("policies", policy_id), Deleted)

    async def check_policy(self, request: PolicyCheck | Document) -> PolicyRuling:
        """Tell whether something would be allowed, and which policies decide it."""
        return await self._send(
            "POST", path_of("policies", "check"), PolicyRuling, body_of(request)
        )

    def list_roles(self, *, limit: int = 100, cursor: str | None = None) -> AsyncListing[RoleView]:
        """List the built-in roles: what each grants, and the policy that says so."""
        return self._list(path_of("roles"), RoleView, {"limit": limit}, cursor)
