"""Sites: the places that pools live in, each of one tenant."""

from collections.abc import Mapping
from typing import Any, Final

from apportion.authority.service import ROOT, Caller, hold_tenant
from apportion.errors import ConflictError, InvalidInputError, InvalidStateError, NotFoundError
from apportion.events.service import Event, append
from apportion.pools.rows import QUERIES, Row
from apportion.pools.schemas import SiteCreate, SiteDeleted, SiteUpdate, SiteView
from apportion.quantities.ids import derive_id
from apportion.store.connections import Connection, retrying, transaction
from apportion.store.errors import guards, register
from apportion.store.runtime import Runtime

_SHOWN_MAX: Final = 5
"""The most pools that the refusal to delete their site names."""

register(
    {
        "sites_name_key": lambda _: ConflictError(
            "this tenant has a site of that name", field="name"
        ),
        **guards("sites_kind_of_tenant"),
    }
)


async def create_site(runtime: Runtime, caller: Caller, request: SiteCreate) -> SiteView:
    """Create a site, or return the one that the same key created.

    Raises InvalidInputError for a kind that is not the tenant's, ConflictError for a taken name or
    a key that made a site of another kind.
    """
    key = request.idempotency_key
    site_id = (
        runtime.new_id("site")
        if key is None
        else derive_id("site", caller.tenant_id, caller.actor, key)
    )
    row = {
        "id": site_id,
        "tenant_id": caller.tenant_id,
        "name": request.name,
        "region": request.region,
        "kind": _kind(caller, request),
        "now": runtime.now(),
    }

    async def work(connection: Connection) -> SiteView:
        await hold_tenant(connection, caller.tenant_id)
        cursor = await connection.execute(QUERIES["insert_site"], row)
        made = await cursor.fetchone()
        site = SiteView.model_validate(made or await _find(connection, caller, site_id))
        if made is None:
            return _same(site, row)
        event = Event("site.created", caller.tenant_id, site.id, _facts(site), after=_told(site))
        await append(connection, caller, runtime.now(), [event])
        return site

    return await retrying(runtime.db, work)


async def list_sites(
    runtime: Runtime, caller: Caller, *, after: str = "", limit: int = 100
) -> list[SiteView]:
    """Return the caller's sites by id."""
    parameters = {"tenant_id": caller.tenant_id, "after": after, "limit": limit}
    async with transaction(runtime.db) as connection:
        cursor = await connection.execute(QUERIES["list_sites"], parameters)
        return [SiteView.model_validate(row) for row in await cursor.fetchall()]


async def get_site(runtime: Runtime, caller: Caller, site_id: str) -> SiteView:
    """Return one site of the caller; NotFoundError for any other."""
    async with transaction(runtime.db) as connection:
        return SiteView.model_validate(await _find(connection, caller, site_id))


async def update_site(
    runtime: Runtime, caller: Caller, site_id: str, request: SiteUpdate
) -> SiteView:
    """Give a site another name or region; access policies see the new region at once."""

    async def work(connection: Connection) -> SiteView:
        before = SiteView.model_validate(await _hold(connection, caller, site_id))
        after = before.model_copy(update=request.model_dump(exclude_none=True))
        if after == before:
            return before
        await connection.execute(
            QUERIES["update_site"], {"id": site_id, "name": after.name, "region": after.region}
        )
        event = Event(
            "site.updated",
            caller.tenant_id,
            site_id,
            _facts(after),
            before=_told(before),
            after=_told(after),
        )
        await append(connection, caller, runtime.now(), [event])
        return after

    return await retrying(runtime.db, work)


async def delete_site(runtime: Runtime, caller: Caller, site_id: str) -> SiteDeleted:
    """Delete a site of the caller in which there is no pool.

    Raises InvalidStateError while there are pools in it, archived ones too: what they were used
    for is still billed by region.
    """

    async def work(connection: Connection) -> SiteDeleted:
        site = SiteView.model_validate(await _hold(connection, caller, site_id, to_delete=True))
        cursor = await connection.execute(
            QUERIES["pools_of_site"], {"id": site_id, "limit": _SHOWN_MAX + 1}
        )
        _check_empty([row["name"] for row in await cursor.fetchall()])
        await connection.execute(QUERIES["delete_site"], {"id": site_id})
        event = Event("site.deleted", caller.tenant_id, site_id, _facts(site), before=_told(site))
        await append(connection, caller, runtime.now(), [event])
        return SiteDeleted(removed=True)

    return await retrying(runtime.db, work)


async def hold_site(connection: Connection, caller: Caller, site_id: str | None) -> Row:
    """Return a site of the caller, or its only one, and keep it from being deleted."""
    cursor = await connection.execute(
        QUERIES["hold_sites"], {"tenant_id": caller.tenant_id, "id": site_id}
    )
    sites = await cursor.fetchall()
    if site_id is not None and not sites:
        raise _no_site(site_id)
    if len(sites) != 1:
        raise InvalidInputError(
            "needed, because the tenant does not have exactly one site",
            field="site_id",
            allowed=", ".join(site["id"] for site in sites) or None,
        )
    return sites[0]


async def _find(connection: Connection, caller: Caller, site_id: str) -> Row:
    cursor = await connection.execute(
        QUERIES["find_site"], {"id": site_id, "tenant_id": caller.tenant_id}
    )
    row = await cursor.fetchone()
    if row is None:
        raise _no_site(site_id)
    return row


async def _hold(
    connection: Connection, caller: Caller, site_id: str, *, to_delete: bool = False
) -> Row:
    cursor = await connection.execute(
        QUERIES["hold_site_to_delete" if to_delete else "hold_site"],
        {"id": site_id, "tenant_id": caller.tenant_id},
    )
    row = await cursor.fetchone()
    if row is None:
        raise _no_site(site_id)
    return row


def _kind(caller: Caller, request: SiteCreate) -> str:
    kinds = ("shared", "dedicated") if caller.tenant_id == ROOT else ("custom",)
    kind = request.kind or kinds[0]
    if kind not in kinds:
        raise InvalidInputError(
            "is no kind that this tenant's sites have",
            field="kind",
            given=kind,
            allowed=" or ".join(kinds),
        )
    return kind


def _same(there: SiteView, row: Mapping[str, Any]) -> SiteView:
    if there.kind != row["kind"]:
        raise ConflictError(
            "the same key created a site of another kind",
            field="idempotency_key",
            details={"site_id": there.id, "there": there.kind, "asked": row["kind"]},
        )
    return there


def _check_empty(pools: list[str]) -> None:
    if not pools:
        return
    more = " and others" if len(pools) > _SHOWN_MAX else ""
    raise InvalidStateError(
        f"the site has pools in it: {', '.join(pools[:_SHOWN_MAX])}{more}",
        field="site_id",
        hint="A pool stays in its site, also when it is archived",
        details={"pools": pools[:_SHOWN_MAX]},
    )


def _facts(site: SiteView) -> dict[str, object]:
    return {"name": site.name, "region": site.region, "kind": site.kind}


def _told(site: SiteView) -> dict[str, object]:
    return site.model_dump(mode="json")


def _no_site(site_id: str) -> NotFoundError:
    return NotFoundError("no such site", field="site_id", given=site_id)
