"""The application: every room's routes behind one door, and every failure a problem document."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Final, cast

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute

from apportion.authority.service import Identities
from apportion.doors.problems import RefusedRequestError, respond
from apportion.doors.signed import CLOCK_SKEW
from apportion.errors import ApportionError, NotFoundError
from apportion.events import api as events
from apportion.events.feed import Feed
from apportion.metering import api as metering
from apportion.nodes import api as nodes
from apportion.nodes import joining_api
from apportion.partitions import api as partitions
from apportion.pools import api as pools
from apportion.pools import quotas_api as quotas
from apportion.reservations import api as reservations_api
from apportion.reservations import series_api
from apportion.reservations.service import Reservations
from apportion.server import health, openapi
from apportion.server.allowed import Allowed
from apportion.server.requests import Requests
from apportion.server.validation import invalid_input
from apportion.store.runtime import Runtime
from apportion.tenants import api as tenants
from apportion.webhooks import api as webhooks
from apportion.webhooks.service import Network

# Routes are tried in this order: what is asked most comes first.
_ROOMS: Final = (
    *(reservations_api, partitions, series_api, tenants, pools, quotas, nodes, joining_api),
    *(metering, events, webhooks, health),
)
_DESCRIPTION: Final = (
    "GPUs by the slice, booked for windows of time and metered exactly. Shares and other exact "
    'numbers are text such as "3/7"; instants are RFC 3339 in UTC; every failure is a problem '
    "document with a stable `code`."
)


def create_app(
    runtime: Runtime,
    reservations: Reservations,
    *,
    ready: Callable[[], bool],
    webhook_networks: Sequence[Network] = (),
    clock_skew: timedelta = CLOCK_SKEW,
) -> FastAPI:
    """Return the application on a runtime; ``ready`` is what /readyz asks beside the database.

    ``webhook_networks`` are those that webhooks may lead into beside the open one; ``clock_skew``
    is how far the clocks of nodes may be from this one.

    There are no documentation pages: FastAPI's load scripts from elsewhere.
    """
    app = _routed()
    app.state.ready = ready
    app.state.runtime = runtime
    app.state.identities = Identities(runtime)
    app.state.reservations = reservations
    app.state.feed = Feed(runtime)
    app.state.webhook_networks = webhook_networks
    app.state.clock_skew = clock_skew
    app.state.doors = [route for room in _ROOMS for route in room.router.routes]
    app.state.allowed = _allowed()
    # FastAPI's own way to change the document is to replace this method.
    app.openapi = _document
    app.add_exception_handler(ApportionError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _refused_by_http)
    app.add_middleware(Requests, new_id=lambda: runtime.new_id("req"))
    return app


def _operation_id(route: APIRoute) -> str:
    return route.name


@cache
def _routes() -> list[BaseRoute]:
    """Return the routes, which all applications of a process share, like the document of them.

    Both are half a second's work: FastAPI reads every signature and builds every model anew.
    """
    whole = APIRouter(generate_unique_id_function=_operation_id)
    for room in _ROOMS:
        whole.include_router(room.router)
    return whole.routes


def _routed() -> FastAPI:
    return FastAPI(
        title="Apportion",
        version=version("apportion"),
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        routes=_routes(),
    )


@cache
def _document() -> dict[str, Any]:
    return openapi.build(_routed())


@cache
def _allowed() -> Allowed:
    return Allowed(_document())


async def _refused(request: Request, error: Exception) -> Response:
    return respond(cast("ApportionError", error), request.state.request_id)


async def _invalid(request: Request, error: Exception) -> Response:
    refusal = invalid_input(
        cast("RequestValidationError", error),
        cast("APIRoute", request.scope["route"]).name,
        cast("Allowed", request.app.state.allowed),
    )
    return respond(refusal, request.state.request_id)


async def _refused_by_http(request: Request, error: Exception) -> Response:
    refusal = cast("HTTPException", error)
    path = request.url.path
    if refusal.status_code == HTTPStatus.NOT_FOUND:
        told: ApportionError = NotFoundError(
            "there is no such path", field="path", given=path, hint="/openapi.json lists all paths"
        )
    elif refusal.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        methods = _methods(request)
        told = RefusedRequestError(
            "is not a method of this path",
            status=refusal.status_code,
            field="method",
            given=request.method,
            allowed=methods,
            headers={"Allow": methods},
        )
    else:
        told = RefusedRequestError(str(refusal.detail), status=refusal.status_code)
    return respond(told, request.state.request_id)


def _methods(request: Request) -> str:
    """Return the methods of a path; the router names only those of the first route that matches.

    A path that is routed word for word (``/v1/pools/validate``) is no id that happens to fit.
    """
    path = request.url.path
    doors = cast("Sequence[APIRoute]", request.app.state.doors)
    found = [door for door in doors if door.path_regex.match(path)]
    exact = [door for door in found if door.path == path]
    return ", ".join(sorted({method for door in exact or found for method in door.methods or ()}))
