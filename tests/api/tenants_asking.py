"""Short ways to ask the API as one token or another, for one tenant or another."""

from dataclasses import dataclass, replace

import httpx2


@dataclass(frozen=True)
class As:
    """Asks with a token, and for another tenant than its own where ``tenant`` says so."""

    http: httpx2.AsyncClient
    token: str
    token_id: str = ""
    tenant: str | None = None

    async def ask(self, method, path, body=None, **query):
        headers = {"Authorization": f"Bearer {self.token}"}
        if self.tenant is not None:
            headers["Apportion-Tenant"] = self.tenant
        return await self.http.request(
            method, f"/v1{path}", json=body, params=query, headers=headers
        )

    async def get(self, path, **query):
        return done(await self.ask("GET", path, **query), 200)

    async def post(self, path, body=None, status=201):
        return done(await self.ask("POST", path, body), status)

    async def patch(self, path, body):
        return done(await self.ask("PATCH", path, body), 200)

    async def put(self, path, body):
        return done(await self.ask("PUT", path, body), 200)

    async def delete(self, path):
        return done(await self.ask("DELETE", path), 200)

    async def refused(self, method, path, status, code, body=None, **query):
        """Return the problem that something is refused with, its request id left out."""
        response = await self.ask(method, path, body, **query)
        assert response.status_code == status, response.text
        told = response.json()
        assert told.pop("code") == code
        told.pop("request_id")
        return told

    def for_tenant(self, tenant):
        return replace(self, tenant=tenant)

    def with_secret(self, secret):
        return replace(self, token=secret)

    async def token_of(self, role="owner", **more):
        """Make a token of the tenant that is asked for, and ask with it from then on."""
        issued = await self.post("/tokens", {"name": role, "role": role, **more})
        return As(self.http, issued["token"], issued["record"]["id"])

    async def tenant_of(self, tenant_id, parent_id=None):
        """Make a tenant and ask as its owner."""
        body = {"id": tenant_id, "name": tenant_id.title(), "parent_id": parent_id}
        await self.post("/tenants", body)
        return await self.for_tenant(tenant_id).token_of()

    async def events(self, kind, subject=None):
        """Return the events of a kind that the tenant is told of."""
        query = {"type": kind} if subject is None else {"type": kind, "subject": subject}
        return (await self.get("/events", **query))["items"]

    async def audited(self, action):
        """Return the audit records of an action."""
        items = (await self.get("/audit", limit=1000))["items"]
        return [each for each in items if each["action"] == action]


def done(response, status):
    assert response.status_code == status, response.text
    return response.json()
