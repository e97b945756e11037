"""The operations of an OpenAPI document, as far as a call needs to know them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from apportion.errors import InvalidInputError

_KEY: Final = "idempotency_key"
_STREAM: Final = "text/event-stream"
# The tenant is --tenant, and a key stands in the body as well.
_PLACES: Final = ("path", "query")


@dataclass(frozen=True, slots=True)
class Parameter:
    """What stands in a path or a query."""

    name: str
    place: str
    required: bool
    is_list: bool


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that the API does."""

    id: str
    method: str
    path: str
    summary: str
    right: str | None
    parameters: tuple[Parameter, ...]
    has_body: bool
    needs_body: bool
    is_stream: bool

    def path_with(self, parameters: Mapping[str, Sequence[str]]) -> str:
        """Return the path with its parts filled in, whatever characters they have."""
        path = self.path
        for each in self.parameters:
            if each.place == "path":
                [value] = parameters[each.name]
                path = path.replace(f"{{{each.name}}}", quote(value, safe=""))
        return path

    def is_repeatable(self, body: object) -> bool:
        """Tell whether doing it twice is as good as once."""
        return self.method != "POST" or (isinstance(body, Mapping) and _KEY in body)

    def data(self) -> Mapping[str, object]:
        """Give what a program wants to know of it."""
        return {
            "id": self.id,
            "method": self.method,
            "path": self.path,
            "summary": self.summary,
            "right": self.right,
            "parameters": [each.name for each in self.parameters],
            "body": "needed" if self.needs_body else "optional" if self.has_body else "none",
        }


def operations_of(document: Mapping[str, Any]) -> list[Operation]:
    """Return the operations of a document, in its order."""
    return list(_operations(document["paths"]))


def find_operation(known: Sequence[Operation], name: str) -> Operation:
    """Return the operation of that id, which answers with one document.

    Raises InvalidInputError that suggests near ones.
    """
    for operation in known:
        if operation.id == name:
            if operation.is_stream:
                raise InvalidInputError(
                    "is a stream without an end",
                    field="OPERATION",
                    given=name,
                    hint="`apportion event watch` shows it",
                )
            return operation
    from difflib import get_close_matches

    near = get_close_matches(name, [each.id for each in known], n=3)
    raise InvalidInputError(
        "there is no such operation",
        field="OPERATION",
        given=name[:60],
        hint=f"Did you mean {' or '.join(near)}?" if near else "`apportion api --list` shows all",
    )


def _operations(paths: Mapping[str, Mapping[str, Any]]) -> Iterator[Operation]:
    for path, methods in paths.items():
        for method, operation in methods.items():
            body = operation.get("requestBody")
            yield Operation(
                id=operation["operationId"],
                method=method.upper(),
                path=path,
                summary=operation.get("summary", ""),
                right=operation.get("x-right"),
                parameters=tuple(_parameters(operation.get("parameters", ()))),
                has_body=body is not None,
                needs_body=body is not None and bool(body.get("required")),
                is_stream=any(
                    _STREAM in answer.get("content", ())
                    for answer in operation.get("responses", {}).values()
                ),
            )


def _parameters(found: Sequence[Mapping[str, Any]]) -> Iterator[Parameter]:
    for each in found:
        if each["in"] in _PLACES:
            kind = each.get("schema", {}).get("type")
            yield Parameter(each["name"], each["in"], bool(each.get("required")), kind == "array")
