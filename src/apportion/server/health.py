"""Is the process alive, and can it serve? Both are asked without a token."""

from collections.abc import Callable
from typing import Literal, cast

from fastapi import APIRouter, Request
from pydantic import BaseModel

from apportion.doors.route import Door, TheRuntime
from apportion.errors import UnavailableError


class Health(BaseModel):
    """The process answers."""

    status: Literal["ok"] = "ok"


class Readiness(BaseModel):
    """The server has started, and its database answers."""

    status: Literal["ready"] = "ready"


router = APIRouter(route_class=Door, tags=["health"])


@router.get("/healthz", summary="Is the process alive?")
async def get_health() -> Health:
    return Health()


@router.get("/readyz", summary="Can the server serve?")
async def get_readiness(request: Request, runtime: TheRuntime) -> Readiness:
    if not cast("Callable[[], bool]", request.app.state.ready)():
        raise UnavailableError("the server is starting or stopping")
    async with runtime.db.connection(timeout=2) as connection:
        await connection.execute("SELECT 1")
    return Readiness()
