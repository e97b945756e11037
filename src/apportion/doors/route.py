"""The way into every route, in one order: who calls, may it, what was asked, then the route itself.

FastAPI's own order would tell a caller without a token about the input that it guessed, and would
ignore a parameter that it does not know: a typo in a filter must not list everything.
"""

from collections.abc import Callable, Coroutine, Mapping
from typing import Annotated, Any, Final, cast, get_args, get_origin

from fastapi import Depends, Request, Response
from fastapi.dependencies.utils import get_flat_params
from fastapi.params import Query
from fastapi.routing import APIRoute
from psycopg import Error

from apportion.authority.service import Caller, Identities, authorize_at_door
from apportion.doors.body import read_body
from apportion.doors.problems import shown
from apportion.doors.rights import right_of
from apportion.doors.signed import check_body, identify_node, is_signed, sign
from apportion.doors.texts import check_text
from apportion.errors import InvalidInputError, UnauthenticatedError
from apportion.store.errors import translate
from apportion.store.runtime import Runtime

_HOW_TO_AUTHENTICATE: Final = (
    "Send `Authorization: Bearer TOKEN`; `apportion up` wrote one to STATE/root.token"
)

TENANT_HEADER: Final = "Apportion-Tenant"
"""Names the tenant that is acted for: the token's own where it is left out, or one below it."""

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class Door(APIRoute):
    """A route that is entered in the order above; its function's name is its operation id."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **kwargs: Any) -> None:
        super().__init__(path, endpoint, **kwargs)
        self.right = right_of(self.name)

    def get_route_handler(self) -> Handler:
        """Return the route's handler behind the checks."""
        handle = super().get_route_handler()
        known = _query_parameters(self)

        async def enter(request: Request) -> Response:
            try:
                return await self._enter(request, handle, known)
            except Error as error:
                raise translate(error) from error

        return enter

    async def _enter(
        self, request: Request, handle: Handler, known: Mapping[str, bool]
    ) -> Response:
        signed = is_signed(request)
        if self.right is not None:
            request.state.caller = (
                await identify_node(request, self.name)
                if signed
                else await identify(request, self.right)
            )
        _check_parameters(request, known)
        if self.body_field is not None:
            request = await read_body(request)
            if signed and self.right is not None:  # of a public operation its route does it
                await check_body(request)
        response = await handle(request)
        if signed:
            sign(request, response)
        return response


# Dependencies are coroutines though they wait for nothing: FastAPI sends plain functions to a
# thread, which costs more than all that they do.
async def runtime_of(request: Request) -> Runtime:
    """Return what the application runs on."""
    return cast("Runtime", request.app.state.runtime)


async def caller_of(request: Request) -> Caller:
    """Return who calls; the door has made sure of it."""
    return cast("Caller", request.state.caller)


TheRuntime = Annotated[Runtime, Depends(runtime_of)]
TheCaller = Annotated[Caller, Depends(caller_of)]


async def identify(request: Request, right: str) -> Caller:
    """Return who calls, or refuse who may not; a long answer asks again while it goes on."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise UnauthenticatedError("no bearer token was sent", hint=_HOW_TO_AUTHENTICATE)
    identities = cast("Identities", request.app.state.identities)
    caller = await identities.authenticate(
        token, request.state.request_id, tenant_id=request.headers.get(TENANT_HEADER)
    )
    authorize_at_door(caller, right)
    return caller


def _query_parameters(route: APIRoute) -> dict[str, bool]:
    """Return the query parameters of a route: each name, and whether it may be repeated."""
    return {
        field.alias: _is_list(field.field_info.annotation)
        for field in get_flat_params(route.dependant)
        if isinstance(field.field_info, Query)
    }


def _is_list(annotation: object) -> bool:
    return get_origin(annotation) is list or any(_is_list(each) for each in get_args(annotation))


def _check_parameters(request: Request, known: Mapping[str, bool]) -> None:
    for name, value in request.query_params.multi_items():
        if name not in known:
            raise InvalidInputError(
                "no such parameter",
                field=name[:100],
                given=shown(value),
                allowed=", ".join(known) or "none: this operation has no parameters",
            )
        values = request.query_params.getlist(name)
        if len(values) > 1 and not known[name]:
            raise InvalidInputError(
                "is given more than once", field=name, given=shown(values), allowed="one value"
            )
        check_text(value, name)
    for name, value in request.path_params.items():
        check_text(str(value), name)
