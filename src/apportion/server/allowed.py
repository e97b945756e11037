"""What a request may hold, in words, read from the OpenAPI document: one source for both.

A schema here is a JSON schema as FastAPI writes it for an operation's parameters and body.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from apportion.doors.schemas import FORMS

Schema = Mapping[str, Any]

_FORMATS: Final = {
    "date-time": "an RFC 3339 instant such as 2026-12-01T09:00:00Z",
    "networks": "networks such as 10.0.0.0/8, separated by commas",
}


class Allowed:
    """Describes what each place of a request may hold, by an OpenAPI document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._components = cast(
            "Mapping[str, Schema]", document.get("components", {}).get("schemas", {})
        )
        self._operations: dict[str, Mapping[str, Any]] = {
            operation["operationId"]: operation
            for path in document["paths"].values()
            for operation in path.values()
        }

    def at(self, operation_id: str, place: str, path: Sequence[str | int]) -> str | None:
        """Return what is allowed at a path of the body, or in the parameter that it names.

        ``place`` is ``body``, ``query``, ``path`` or ``header``. None where nothing is known.
        """
        operation = self._operations[operation_id]
        if place == "body":
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            found = self._walk(schema, path)
        else:
            found = [
                schema
                for each in operation.get("parameters", ())
                if each["in"] == place and each["name"].lower() == str(path[0]).lower()
                for schema in self._walk(each["schema"], path[1:])
            ]
        return self._say_any(found) if found else None

    def fields(self, operation_id: str, path: Sequence[str | int]) -> str | None:
        """Return the names of the fields that the object at a path of the body has."""
        schema = self._operations[operation_id]["requestBody"]["content"]["application/json"]
        found = self._walk(schema["schema"], path)
        return ", ".join(name for each in found for name in _names(each)) or None

    def _walk(self, schema: Schema, path: Sequence[str | int]) -> list[Schema]:
        """Return the schemas that hold at a path: several where there is a choice."""
        found = self._choices(schema)
        for part in path:
            found = [
                choice
                for each in found
                if (step := _step(each, part)) is not None
                for choice in self._choices(step)
            ]
        return found

    def _choices(self, schema: Schema) -> list[Schema]:
        if "$ref" in schema:
            name = str(schema["$ref"]).rpartition("/")[2]
            return self._choices(self._components[name])
        if "anyOf" in schema:
            return [choice for each in schema["anyOf"] for choice in self._choices(each)]
        return [schema]

    def _say_any(self, schemas: Sequence[Schema]) -> str | None:
        return describe({"anyOf": [choice for each in schemas for choice in self._choices(each)]})


def describe(schema: Schema) -> str | None:
    """Return in words what a schema without references takes; None where it does not say."""
    choices = cast("Sequence[Schema]", schema.get("anyOf", [schema]))
    said = [_say(choice) for choice in choices if choice.get("type") != "null"]
    return " or ".join(dict.fromkeys(filter(None, said))) or None


def _names(schema: Schema) -> Sequence[str]:
    """Return the fields of an object: its own, or the names that a map of one kind may have."""
    own = cast("Mapping[str, Schema]", schema.get("properties", {}))
    return [*own, *cast("Schema", schema.get("propertyNames", {})).get("enum", ())]


def _step(schema: Schema, part: str | int) -> Schema | None:
    if isinstance(part, int):
        return cast("Schema | None", schema.get("items"))
    named = cast("Mapping[str, Schema]", schema.get("properties", {})).get(part)
    if named is not None:
        return named
    rest = schema.get("additionalProperties")
    return cast("Schema", rest) if isinstance(rest, dict) else None


def _say(schema: Schema) -> str:
    if "const" in schema:
        return str(schema["const"])
    if "enum" in schema:
        return ", ".join(str(each) for each in schema["enum"])
    say = _KINDS.get(str(schema.get("type")))
    return "" if say is None else say(schema)


def _say_number(schema: Schema) -> str:
    kind = "a whole number" if schema["type"] == "integer" else "a number"
    return kind + _range(schema, "minimum", "maximum")


def _say_list(schema: Schema) -> str:
    return f"a list{_range(schema, 'minItems', 'maxItems', ' items')}"


def _say_object(schema: Schema) -> str:
    names = ", ".join(_names(schema))
    return f"an object with {names}" if names else "an object"


def _say_text(schema: Schema) -> str:
    if schema.get("format") in _FORMATS:
        return _FORMATS[schema["format"]]
    if "examples" in schema:
        return f"text such as {' or '.join(schema['examples'])}"
    if schema.get("pattern") in FORMS:
        return FORMS[schema["pattern"]]
    text = f"text{_range(schema, 'minLength', 'maxLength', ' characters')}"
    if "pattern" in schema:
        text += f" of the form {schema['pattern']}"
    return text


def _range(schema: Schema, lowest: str, highest: str, unit: str = "") -> str:
    low, high = (_whole(schema.get(bound)) for bound in (lowest, highest))
    if low is not None and high is not None:
        return f" of {low} to {high}{unit}"
    if low is not None:
        return f" of at least {low}{unit}"
    return f" of at most {high}{unit}" if high is not None else ""


def _whole(bound: object) -> object:
    """Give back the whole number that FastAPI's document writes as a float."""
    return int(bound) if isinstance(bound, float) and bound.is_integer() else bound


_KINDS: Final[Mapping[str, Callable[[Schema], str]]] = {
    "integer": _say_number,
    "number": _say_number,
    "boolean": lambda _: "true or false",
    "string": _say_text,
    "array": _say_list,
    "object": _say_object,
}
