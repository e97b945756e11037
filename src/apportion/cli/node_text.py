"""What a node has said of itself, as tables: its units, where its host differs, its checks."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from apportion.cli.output import table

if TYPE_CHECKING:
    from apportion.nodes.schemas import NodeView


def said_lines(node: "NodeView") -> Iterator[str]:
    """Give the tables, each with an empty line behind it; none of what nobody has said."""
    units = [
        (name, "yes" if each["done"] else f"no: {each['reason']}", each["message"] or "-")
        for name, each in sorted(node.outcomes.items())
    ]
    if units:
        yield from (table(("unit", "done", "says"), units), "")
    differing = [
        (name, each["object"] or "-", each["field"], each["wanted"], each["found"] or "unknown")
        for name, outcome in sorted(node.outcomes.items())
        for each in outcome.get("mismatches", ())
    ]
    if differing:
        yield from (table(("unit", "of", "field", "wanted", "found"), differing), "")
    checks = [
        (name, "yes" if each["passed"] else "no", _details(each["details"]))
        for name, each in sorted(node.acceptance.items())
    ]
    if checks:
        yield from (table(("acceptance", "passed", "details"), checks), "")


def _details(details: Any) -> str:
    """Say what a check found wrong; what other checks give is shown as it is."""
    wrong = details.get("wrong")
    if isinstance(wrong, list):
        return "; ".join(map(str, cast("list[object]", wrong))) or "-"
    return ", ".join(f"{name}: {value}" for name, value in sorted(details.items())) or "-"
