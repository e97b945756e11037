"""Reading YAML and JSON exactly: numbers as they are written, no name twice, bounded, with lines.

Plain words are read as YAML 1.2 and JSON have them: ``no`` is a text and no false, ``6:30`` no
number of seconds, ``010`` no 8.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, NoReturn

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from apportion.errors import InvalidInputError

Path = tuple[str | int, ...]
"""Where a value stands: ``("pools", 2, "policy")``."""

NODES_MAX: Final = 200_000
"""The most values of a document, each counted wherever an alias repeats it."""
DEPTH_MAX: Final = 100
CHARACTERS_MAX: Final = 10_000_000

_SHOWN: Final = 60
_TEXT: Final = "tag:yaml.org,2002:str"
_WORDS: Final[Mapping[str, Any]] = {
    "": None,
    "~": None,
    "null": None,
    "true": True,
    "false": False,
}
_WHOLE: Final = re.compile(r"[-+]?(0|[1-9][0-9]{0,399})", re.ASCII)
_NUMBER: Final = re.compile(r"[-+]?(0|[1-9][0-9]{0,399})(\.[0-9]{1,399})?([eE][-+]?[0-9]{1,2})?")
_STEP: Final = re.compile(r"\w[\w-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Document:
    """What a file holds, and the line of each value; no lines of JSON."""

    name: str
    value: Any
    lines: Mapping[Path, int] = field(default_factory=dict[Path, int])

    def place(self, path: Sequence[str | int]) -> str:
        """Return where a value stands, as a person finds it: ``fleet.yaml:12: pools[2].site``."""
        return f"{self.name}{self._line(tuple(path))}: {path_text(path) or 'the file'}"

    def _line(self, path: Path) -> str:
        """Give the line of a value, or of the nearest thing around one that is missing."""
        while path and path not in self.lines:
            path = path[:-1]
        return f":{self.lines[path]}" if path in self.lines else ""


class _Loader(yaml.SafeLoader):
    """Composes nodes and resolves no word: that is done here."""

    yaml_implicit_resolvers: Mapping[str, Any] = {}


def read_document(text: str, name: str) -> Document:
    """Read one document; InvalidInputError says in which line it is wrong."""
    if len(text) > CHARACTERS_MAX:
        raise InvalidInputError("is too long", field=name, allowed=f"{CHARACTERS_MAX} characters")
    document = _json(text, name) if text.lstrip()[:1] == "{" else None
    document = document or _yaml(text, name)
    try:
        json.dumps(document.value, ensure_ascii=False, default=str).encode()
    except ValueError as error:
        raise InvalidInputError(f"is not text in UTF-8: {error}", field=name) from None
    return document


def path_text(path: Sequence[str | int]) -> str:
    """Write a path as JSON paths are written."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _STEP.fullmatch(step):
            text += f".{step}" if text else step
        else:
            text += f"[{json.dumps(step[:_SHOWN])}]"
    return text


def _json(text: str, name: str) -> Document | None:
    """Return what JSON says; None for what is no JSON: a YAML mapping may begin so too."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [each for each, _ in pairs]
        for each in names:
            if names.count(each) > 1:
                raise _twice(each, name)
        return dict(pairs)

    def no_constant(constant: str) -> NoReturn:
        raise InvalidInputError("is no number of JSON", field=name, given=constant)

    try:
        value = json.loads(
            text, object_pairs_hook=once, parse_float=Decimal, parse_constant=no_constant
        )
    except json.JSONDecodeError:
        return None
    except (ValueError, RecursionError) as error:  # endless digits; depth
        raise InvalidInputError(f"cannot be read: {error}", field=name) from None
    return Document(name, value)


def _yaml(text: str, name: str) -> Document:
    try:
        node = _composed(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = "" if mark is None else f":{mark.line + 1}"
        raise InvalidInputError(
            f"is not YAML: {error.problem or error.context}", field=f"{name}{line}"
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        told = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InvalidInputError(f"is not YAML: {told}", field=name) from None
    if node is None:
        raise InvalidInputError("is empty", field=name, allowed="a fleet")
    reader = _Reader(name)
    return Document(name, reader.value(node, ()), reader.lines)


def _composed(text: str) -> Node | None:
    return yaml.compose(text, Loader=_Loader)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - PyYAML has no types for it


class _Reader:
    """Turns nodes into values; what aliases repeat is counted each time, so that it ends."""

    def __init__(self, name: str) -> None:
        self.lines: dict[Path, int] = {}
        self._name = name
        self._count = 0

    def value(self, node: Node, path: Path) -> Any:
        self._count += 1
        if self._count > NODES_MAX or len(path) > DEPTH_MAX:
            raise self._refusal(
                node, "is too large", allowed=f"{NODES_MAX} values, {DEPTH_MAX} levels"
            )
        self.lines[path] = node.start_mark.line + 1
        if isinstance(node, MappingNode):
            self._check_tag(node, "map")
            return self._mapping(node, path)
        if isinstance(node, SequenceNode):
            self._check_tag(node, "seq")
            return [self.value(each, (*path, at)) for at, each in enumerate(node.value)]
        assert isinstance(node, ScalarNode)  # noqa: S101 - YAML has no fourth kind
        self._check_tag(node, "str")
        return self._scalar(node)

    def _mapping(self, node: MappingNode, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, each in node.value:
            if not isinstance(key, ScalarNode):
                raise self._refusal(key, "is no name of a field", allowed="text")
            name = str(key.value)
            if name in found:
                raise _twice(name, f"{self._name}:{key.start_mark.line + 1}")
            found[name] = self.value(each, (*path, name))
            self.lines[*path, name] = key.start_mark.line + 1
        return found

    def _scalar(self, node: ScalarNode) -> Any:
        text = str(node.value)
        if node.style is not None:
            return text
        if text in _WORDS:
            return _WORDS[text]
        if _WHOLE.fullmatch(text):
            return int(text)
        return Decimal(text) if _NUMBER.fullmatch(text) else text

    def _check_tag(self, node: Node, kind: str) -> None:
        if node.tag != _TEXT.replace("str", kind):
            raise self._refusal(node, "has a tag, which a fleet does not need", given=node.tag)

    def _refusal(self, node: Node, words: str, **facts: Any) -> InvalidInputError:
        place = f"{self._name}:{node.start_mark.line + 1}"
        return InvalidInputError(words, field=place, **facts)


def _twice(name: str, place: str) -> InvalidInputError:
    return InvalidInputError("names a field twice", field=place, given=name[:_SHOWN])
