"""The reference documents say what the code says: no more, no less."""

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from apportion import errors
from apportion.cli import NOUNS
from apportion.doors.rights import RIGHTS
from apportion.nodes.devices import REASONS
from apportion.placement.selectors import KEYS
from apportion.placement.verdicts import HELP
from apportion.pools.policy import policy_schema
from apportion.reservations.service import Reservations
from apportion.server.app import create_app
from apportion.server.settings import Settings
from apportion.store.runtime import Runtime

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "apportion"


def first_cells(name: str, heading: str | None = None) -> set[str]:
    """Give the code words in the first column of a document's tables, below a heading."""
    text = (DOCS / "reference" / name).read_text("utf-8")
    if heading is not None:
        text = text.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    cells = re.findall(r"^\| ([^|]+)\|", text, re.MULTILINE)
    return {word for cell in cells for word in re.findall(r"`([^`]+)`", cell)}


def in_code(pattern: str) -> set[str]:
    return {
        found
        for path in SOURCE.rglob("*")
        if path.suffix in {".py", ".sql"}
        for found in re.findall(pattern, path.read_text("utf-8"))
    }


def test_every_error_code_is_documented():
    codes = {
        each.code
        for _, each in inspect.getmembers(errors, inspect.isclass)
        if issubclass(each, errors.ApportionError)
    }
    assert first_cells("errors.md") == codes


def test_every_event_type_is_documented():
    written = in_code(r'Event\(\s*"([a-z_]+\.[a-z_]+)"')
    written |= in_code(
        r'"((?:node|reservation|pool|quota)\.(?:joined|reported|started|ended|failed))"'
    )
    written |= in_code(r'"(node\.mig\.\w+|reservation\.(?:device_\w+|ending))"')
    written |= {f"node.mig.{name}" for name in in_code(r'\.move\(\s*"(\w+)"')}
    assert first_cells("events.md", "Types") == written


def test_every_reason_of_a_reservation_is_documented():
    own = in_code(r"'code', '(\w+)'") | in_code(r'"code": "(\w+)"') | {"released", "cancelled"}
    own |= in_code(r'OVERRUN: Final = "(\w+)"')
    assert first_cells("reservations.md", "Reasons") == own | set(HELP)


def test_every_reason_of_a_device_is_documented():
    states = {"asked", "ready", "missing", "withdrawn"}
    told = first_cells("partitions.md", "Whether a holder's device is there")
    assert told == states | set(REASONS)


def test_every_reason_of_an_atom_is_documented():
    documented = first_cells("atoms.md", "Why an atom cannot be booked")
    code = "".join(
        (SOURCE / "nodes" / name).read_text("utf-8")
        for name in ("atoms.py", "atom_rows.py", "on_demand.py")
    )
    queries = (SOURCE / "nodes" / "queries.sql").read_text("utf-8")
    written = set(re.findall(r"reason = '(\w+)'", queries))
    written |= set(re.findall(r"stale_since IS NOT NULL THEN '(\w+)'", queries))
    written |= set(re.findall(r'reason(?: = |=)"(\w+)"', code))
    written |= set(re.findall(r'return "(failed)"', code))
    named = (
        "PARTITION_PENDING|NOT_CONVERGED|NOT_CHECKED|NOT_PASSED|SPLIT|MISSING|NEEDS_RESET|FOREIGN"
        "|NOT_IN_DRIVER"
    )
    written |= set(re.findall(rf'(?:{named}): Final = "(\w+)"', code))
    assert documented == written


def test_every_attribute_that_selectors_know_is_documented():
    assert first_cells("atoms.md", "Attributes") == set(KEYS)


def policy_rows() -> dict[str, list[str]]:
    """Give the documented policy fields: what stands in each one's row."""
    text = (DOCS / "reference" / "pool-policy.md").read_text("utf-8")
    rows = re.findall(r"^\| `([\w.]+)` \|(.+)\|$", text.split("\n## ")[1], re.MULTILINE)
    return {name: [cell.strip() for cell in cells.split("|")] for name, cells in rows}


def policy_fields(part: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Give each field of the policy's schema by its path."""
    defs = policy_schema()["$defs"]
    for each in (part, *part.get("anyOf", ()), part.get("items", {})):
        known = defs[each["$ref"].rsplit("/", 1)[1]] if "$ref" in each else each
        for name, field in known.get("properties", {}).items():
            yield path + name, field
            yield from policy_fields(field, f"{path}{name}.")


def test_every_policy_field_is_documented():
    assert set(policy_rows()) == {name for name, _ in policy_fields(policy_schema())}


def test_what_a_policy_field_allows_is_documented():
    rows = policy_rows()
    for name, field in policy_fields(policy_schema()):
        _, default, allowed, _ = rows[name]
        for kind in (field, *field.get("anyOf", ())):
            words = [word for word in kind.get("enum", ()) if isinstance(word, str)]
            assert [word for word in words if f"`{word}`" not in allowed] == [], name
            if kind.get("type") == "integer":
                assert str(kind["minimum"]) in allowed, name
                assert str(kind.get("maximum", "")) in allowed, name
        if field.get("type") == "boolean":
            assert default == f"`{json.dumps(field['default'])}`", name
        elif "enum" in field and field.get("default") is not None:
            assert default == f"`{field['default']}`", name


def test_every_link_between_documents_leads_somewhere():
    broken = [
        f"{path.relative_to(ROOT)}: {target}"
        for path in [*DOCS.rglob("*.md"), *ROOT.glob("*.md")]
        for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", path.read_text("utf-8"))
        if not (path.parent / target).exists()
    ]
    assert not broken


def test_every_operation_is_documented_with_its_route_and_its_right():
    app = create_app(cast("Runtime", None), cast("Reservations", None), ready=lambda: True)
    operations = {
        (f"{method.upper()} {path}", operation["operationId"])
        for path, methods in app.openapi()["paths"].items()
        for method, operation in methods.items()
    }
    expected = {(route, name, RIGHTS.get(name, "none")) for route, name in operations}
    text = (DOCS / "reference" / "api.md").read_text("utf-8")
    assert (
        set(re.findall(r"^\| `([^`]+)` \| `([^`]+)` \| `([^`]+)`", text, re.MULTILINE)) == expected
    )


def test_every_command_is_documented():
    assert first_cells("commands.md", "Commands") == set(NOUNS)


def test_every_setting_is_documented_with_its_variable():
    text = (DOCS / "reference" / "commands.md").read_text("utf-8")
    told = dict(re.findall(r"^\| `(\w+)` \| `(APPORTION_\w+)`", text, re.MULTILINE))
    assert told == {name: f"APPORTION_{name.upper()}" for name in Settings.model_fields}
