"""Doing a plan: one call of the API a step, each whole or not at all.

What is done stays done when the next step fails or the process dies: the plan that is made then has
what is left. A pool's idempotency key is made of its name, so that a creation whose answer was lost
makes no second one.
"""

from collections.abc import Callable, Mapping

from apportion.client import Client
from apportion.errors import ConflictError, NotFoundError
from apportion.fleet.steps import Step
from apportion.fleet.there import Server, There
from apportion.fleet.values import sent
from apportion.quantities.ids import derive_id


class Applying:
    """Does steps against a server, in the order of their plan."""

    def __init__(self, server: Server, there: There) -> None:
        self._server = server
        self._sites = {key: site.id for key, site in there.sites.items()}
        self._pools = {key: pool.view.id for key, pool in there.pools.items()}
        self._doing: Mapping[tuple[str, str], Callable[[Client, Step], None]] = {
            ("tenant", "create"): self._create_tenant,
            ("tenant", "update"): self._update_tenant,
            ("tenant", "delete"): self._delete_tenant,
            ("site", "create"): self._create_site,
            ("site", "update"): self._update_site,
            ("site", "delete"): self._delete_site,
            ("pool", "create"): self._create_pool,
            ("pool", "update"): self._update_pool,
            ("pool", "delete"): self._archive_pool,
            ("quota", "update"): self._set_quota,
            ("offer", "create"): self._offer,
            ("offer", "update"): self._offer,
            ("offer", "delete"): self._unoffer,
            ("policy", "create"): self._create_policy,
            ("policy", "update"): self._update_policy,
            ("policy", "delete"): self._delete_policy,
        }

    def do(self, step: Step) -> None:
        """Do one step; raises what the server refuses it with."""
        self._doing[step.kind, step.action](self._server.acting(step.tenant), step)

    def _create_tenant(self, client: Client, step: Step) -> None:
        try:
            client.create_tenant(step.body)
        except ConflictError as error:
            if not error.details.get("uncertain"):
                raise
            there = client.get_tenant(step.name)
            made = {"id": there.id, "name": there.name, "parent_id": there.parent_id}
            if made != step.body or there.deleted_at is not None:
                raise

    def _update_tenant(self, client: Client, step: Step) -> None:
        client.update_tenant(step.name, step.body)

    def _delete_tenant(self, client: Client, step: Step) -> None:
        client.delete_tenant(step.name)

    def _create_site(self, client: Client, step: Step) -> None:
        self._sites[step.tenant, step.name] = client.create_site(step.body).id

    def _update_site(self, client: Client, step: Step) -> None:
        client.update_site(_id(step), step.body)

    def _delete_site(self, client: Client, step: Step) -> None:
        try:
            client.delete_site(_id(step))
        except NotFoundError as error:
            if not error.details.get("uncertain"):
                raise

    def _create_pool(self, client: Client, step: Step) -> None:
        body = {
            **sent(dict(step.body)),
            "site_id": self._sites[step.tenant, step.site or ""],
            "idempotency_key": creation_key(step),
        }
        self._pools[step.tenant, step.name] = client.create_pool(body).id

    def _update_pool(self, client: Client, step: Step) -> None:
        client.update_pool(_id(step), {**sent(dict(step.body)), "version": step.version})

    def _archive_pool(self, client: Client, step: Step) -> None:
        client.archive_pool(_id(step))

    def _set_quota(self, client: Client, step: Step) -> None:
        client.set_quota({**step.body, "pool_id": self._pools[step.tenant, step.name]})

    def _offer(self, client: Client, step: Step) -> None:
        client.offer_pool(self._pools[step.tenant, step.name], step.to or "", step.body)

    def _unoffer(self, client: Client, step: Step) -> None:
        client.unoffer_pool(_id(step), step.to or "")

    def _create_policy(self, client: Client, step: Step) -> None:
        client.create_policy({**step.body, "idempotency_key": creation_key(step)})

    def _update_policy(self, client: Client, step: Step) -> None:
        client.update_policy(_id(step), {**step.body, "version": step.version})

    def _delete_policy(self, client: Client, step: Step) -> None:
        client.delete_policy(_id(step))


def creation_key(step: Step) -> str:
    """Return the idempotency key of a creation: the same for what has the same name."""
    return f"fleet/{step.tenant}/{step.name}"


def future_id(step: Step, token_id: str) -> str:
    """Return the id that a pool will have when this token creates it by this plan."""
    return derive_id("pool", step.tenant, token_id, creation_key(step))


def _id(step: Step) -> str:
    assert step.id is not None  # noqa: S101 - what is changed was read
    return step.id
