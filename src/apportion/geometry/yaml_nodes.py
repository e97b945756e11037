"""Reads YAML by its nodes, so that every refusal can name the line.

A loaded document has lost its line numbers and, of a key that is written twice, the first value.
"""

import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Final

from apportion.errors import InvalidInputError

if TYPE_CHECKING:  # PyYAML costs 20 ms to import, and only reading a file needs it
    from yaml.nodes import Node
else:
    Node = object

_BOOLEAN: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_COUNT: Final = re.compile(r"[0-9]{1,3}", re.ASCII)


def compose(text: str) -> Node:
    """Return the root node of one YAML document; InvalidInputError where the text is none."""
    import yaml

    try:
        node = yaml.SafeLoader(text).get_single_node()
    except yaml.MarkedYAMLError as error:
        at = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InvalidInputError(
            f"line {at}: not YAML: {error.problem}", field="file", details={"line": at}
        ) from None
    except yaml.YAMLError as error:
        raise InvalidInputError(f"not YAML: {error}", field="file") from None
    except RecursionError:
        raise InvalidInputError("nested too deeply", field="file") from None
    if node is None:
        raise InvalidInputError("the file is empty", field="file")
    return node


def line(node: Node) -> int:
    """Return the line, counted from one, on which a node begins."""
    return node.start_mark.line + 1


def refused(node: Node, field: str, message: str, allowed: str | None = None) -> InvalidInputError:
    """Make the error for a node: it names the line and the path to the value."""
    at = line(node)
    return InvalidInputError(
        f"line {at}: {message}", field=field, allowed=allowed, details={"line": at}
    )


def mapping(
    node: Node,
    field: str,
    *,
    required: AbstractSet[str] = frozenset(),
    optional: AbstractSet[str] | None = None,
) -> Mapping[str, Node]:
    """Return the entries of a mapping whose keys are all different.

    With ``required`` names, those must be there, and beside them only ``optional`` ones.
    """
    from yaml.nodes import MappingNode

    if not isinstance(node, MappingNode):
        raise refused(node, field, "not a mapping")
    rows: dict[str, Node] = {}
    for key, value in node.value:
        name = string(key, field)
        if name in rows:
            raise refused(key, field, f"{name} is written twice")
        if required and name not in required | (optional or frozenset()):
            known = ", ".join(sorted(required | (optional or frozenset())))
            raise refused(key, field, f"unexpected {name}", known)
        rows[name] = value
    for name in sorted(required - rows.keys()):
        raise refused(node, field, f"{name} is missing")
    return rows


def sequence(node: Node, field: str) -> Sequence[Node]:
    """Return the items of a list that is not empty."""
    from yaml.nodes import SequenceNode

    if not isinstance(node, SequenceNode) or not node.value:
        raise refused(node, field, "not a list with at least one entry")
    return node.value


def is_scalar(node: Node) -> bool:
    """Tell a single value from a list or a mapping."""
    from yaml.nodes import ScalarNode

    return isinstance(node, ScalarNode)


def string(node: Node, field: str) -> str:
    """Return the text of a single value."""
    from yaml.nodes import ScalarNode

    if not isinstance(node, ScalarNode):
        raise refused(node, field, "not a single value")
    return node.value


def boolean(node: Node, field: str) -> bool:
    """Return a truth value; a quoted word is text, not one."""
    value = _BOOLEAN.get(string(node, field).lower())
    if value is None or not node.tag.endswith(":bool"):
        raise refused(node, field, "not a truth value", "true or false")
    return value


def count(node: Node, field: str) -> int:
    """Return a whole number of 0 to 999 in plain decimal digits."""
    text = string(node, field)
    if not _COUNT.fullmatch(text) or not node.tag.endswith(":int"):
        raise refused(node, field, f"not a count: {text}", "0 to 999")
    return int(text)
