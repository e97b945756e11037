"""The OpenAPI document: FastAPI's, with the problems, rights and token that it cannot know."""

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from apportion.doors.problems import MEDIA_TYPE, Problem
from apportion.doors.rights import right_of
from apportion.doors.route import TENANT_HEADER

_REF: Final = "#/components/schemas/{model}"
_TENANT: Final = {
    "name": TENANT_HEADER,
    "in": "header",
    "required": False,
    "description": "The tenant to act for: the token's own where it is left out, or one below.",
    "schema": {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"},
}
_ALWAYS: Final = {500: "A fault of the server", 503: "A part that is needed does not answer now"}
_KNOWN_CALLER: Final = {
    401: "No valid token",
    403: "Not allowed, or more than the quota covers",
    404: "No such tenant or object for this caller",
}
_INPUT: Final = {400: "What was sent is wrong"}
_BODY: Final = {
    409: "Somebody else was first, or the state does not allow it",
    413: "The body is larger than 16 MiB",
    415: "The body is not application/json",
}


def build(app: FastAPI) -> dict[str, Any]:
    """Return the document of an application; public operations are those without a right."""
    document = get_openapi(
        title=app.title,
        version=app.version,
        openapi_version=app.openapi_version,
        summary=app.summary,
        description=app.description,
        routes=app.routes,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        servers=[{"url": "/"}],
    )
    components = document.setdefault("components", {})
    schemas: dict[str, Any] = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)  # we answer with problems, and with 400
    schemas["Problem"] = Problem.model_json_schema(ref_template=_REF)
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for path in document["paths"].values():
        for method, operation in path.items():
            _complete(method, operation)
    return document


def _complete(method: str, operation: dict[str, Any]) -> None:
    right = right_of(operation["operationId"])
    operation["security"] = [] if right is None else [{"token": []}]
    if right is not None:
        operation["x-right"] = right
        operation.setdefault("parameters", []).append(_TENANT)
    operation["responses"].pop("422", None)
    for parameter in operation.get("parameters", ()):
        parameter["schema"] = _without_null(parameter["schema"])
    for status, meaning in _problems(method, operation, public=right is None).items():
        operation["responses"][str(status)] = {
            "description": meaning,
            "content": {MEDIA_TYPE: {"schema": {"$ref": _REF.format(model="Problem")}}},
        }


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Drop null from a parameter's choices: it can be left out, but no address can say null."""
    choices = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    if len(choices) != 1:
        return schema
    return {**choices[0], **{key: value for key, value in schema.items() if key != "anyOf"}}


def _problems(method: str, operation: dict[str, Any], *, public: bool) -> dict[int, str]:
    problems = {**_INPUT, **_ALWAYS}
    if not public or "requestBody" in operation:
        problems |= _KNOWN_CALLER
    if method != "get":
        problems |= _BODY if "requestBody" in operation else {409: _BODY[409]}
    return problems
