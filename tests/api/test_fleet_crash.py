"""Applying dies between any two requests, before or after the server acted, and is done again."""

import anyio
import httpx2
import pytest
from fleet_world import FLEET, titles, world

from in_loop import InLoop

pytestmark = pytest.mark.anyio

CHANGED = (
    FLEET.replace("maxPending: 6h", "maxPending: 12h")
    .replace("gpu: 32", "gpu: 64")
    .replace("vcpu: 2.5}", "memoryGiB: 8}")
    .replace("> 8", "> 4")
    .replace("name: Acme Inc.", "name: Acme")
    .replace("region: eu-west", "region: eu-north")
)
LESS = """\
apiVersion: apportion/v1
tenants: []
sites: []
policies: []
pools:
- {name: h100, site: fra1, gpu_model: H100, offers: {}}
"""


class DeathError(Exception):
    """The process is gone."""


class Mortal(httpx2.BaseTransport):
    """Lets one request through that writes, and dies at the next."""

    def __init__(self, app) -> None:
        self._inner = InLoop(app)
        self.writes = 0

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        if _writes(request):
            if self.writes == 1:
                raise DeathError
            self.writes += 1
        return self._inner.handle_request(request)


class Lossy(httpx2.BaseTransport):
    """Loses the answer to each request that writes, once the server has acted; then answers."""

    def __init__(self, app) -> None:
        self._inner = InLoop(app)
        self._last: tuple[str, str] | None = None
        self.lost = 0

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        answer = self._inner.handle_request(request)
        this = (request.method, str(request.url))
        if _writes(request) and this != self._last:
            self._last = this
            self.lost += 1
            raise httpx2.ReadError("the connection broke")
        self._last = None
        return answer


def _writes(request: httpx2.Request) -> bool:
    return request.method != "GET" and not request.url.path.endswith("/validate")


def created(fleet) -> list[str]:
    """Give what was ever created, by the events that tell of it."""
    with fleet.connect(None) as client:
        events = list(client.list_events(limit=1000).all())
    return sorted(each.type for each in events if each.type.endswith(".created"))


# Of root; and of acme what root is told of.
CREATED = ["pool.created"] * 2 + ["site.created", "tenant.created", "tenant.created"]


async def test_it_dies_after_each_step_and_applying_again_leads_to_the_same_end(app, token):
    def apply_with_deaths(text, *, prune):
        """Apply until a life ends by itself; each does one step of the plan that it finds."""
        deaths = 0
        while True:
            mortal = Mortal(app)
            fleet = world(app, token, lambda: mortal)  # noqa: B023 - used before the next life
            planned = titles(fleet.plan(text, prune=prune))
            try:
                fleet.apply(text, prune=prune)
            except DeathError:
                deaths += 1
                assert titles(fleet.plan(text, prune=prune)) == planned[1:]
            else:
                return deaths

    def work():
        living = world(app, token)
        assert apply_with_deaths(FLEET, prune=False) == 9
        made = living.export()
        assert apply_with_deaths(CHANGED, prune=False) == 6
        changed = living.export()
        assert apply_with_deaths(LESS, prune=True) == 4
        assert titles(living.plan(LESS, prune=True)) == []
        assert created(living) == CREATED
        return made, changed

    made, changed = await anyio.to_thread.run_sync(work)
    assert "maxPending: 6h" in made
    assert "maxPending: 12h" in changed


async def test_answers_that_are_lost_make_nothing_twice_and_stop_nothing(app, token):
    def work():
        living = world(app, token)
        lossy = Lossy(app)
        fleet = world(app, token, lambda: lossy)
        for text, prune, steps in ((FLEET, False, 10), (CHANGED, False, 7), (LESS, True, 5)):
            before = lossy.lost
            assert len(fleet.apply(text, prune=prune).steps) == steps
            assert lossy.lost - before == steps
            assert titles(living.plan(text, prune=prune)) == []
        assert created(living) == CREATED

    await anyio.to_thread.run_sync(work)
