"""The reference documents say what the code says: no more, no less."""

import inspect
import re
from pathlib import Path
from typing import cast

from apportion import errors
from apportion.cli import NOUNS
from apportion.doors.rights import RIGHTS
from apportion.placement.selectors import KEYS
from apportion.placement.verdicts import HELP
from apportion.pools import policy
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
    written = in_code(r'Event\(\s*"([a-z]+\.[a-z]+)"')
    written |= in_code(
        r'"((?:node|reservation|pool|quota)\.(?:joined|reported|started|ended|failed))"'
    )
    assert first_cells("events.md") == written


def test_every_reason_of_a_reservation_is_documented():
    own = in_code(r"'code', '(\w+)'") | in_code(r'"code": "(\w+)"') | {"released", "cancelled"}
    assert first_cells("reservations.md", "Reasons") == own | set(HELP)


def test_every_reason_of_an_atom_is_documented():
    documented = first_cells("atoms.md", "Why an atom cannot be booked")
    code = "".join(
        (SOURCE / "nodes" / name).read_text("utf-8") for name in ("atoms.py", "atom_rows.py")
    )
    queries = (SOURCE / "nodes" / "queries.sql").read_text("utf-8")
    written = set(re.findall(r"reason = '(\w+)'", queries))
    written |= set(re.findall(r'reason(?: = |=)"(\w+)"', code))
    written |= set(re.findall(r'return "(failed)"', code))
    written |= set(re.findall(r'(?:PARTITION_PENDING|SPLIT|MISSING): Final = "(\w+)"', code))
    assert documented == written


def test_every_attribute_that_selectors_know_is_documented():
    assert first_cells("atoms.md", "Attributes") == set(KEYS)


def test_every_policy_field_is_documented():
    code = inspect.getsource(policy)
    read = set(re.findall(r'policy(?:\.get\(|, )"(\w+)"', code))
    assert first_cells("pools.md", "Policy") == read


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
