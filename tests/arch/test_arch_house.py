"""What import-linter cannot say about the house."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "apportion"
TESTS = ROOT / "tests"
ROOMS = (
    "authority",
    "events",
    "tenants",
    "webhooks",
    "pools",
    "nodes",
    "bookings",
    "reservations",
    "partitions",
    "metering",
)
OPEN_TO_OTHERS = {"actions", "service", "schemas", "policy"}
PURE = ("quantities", "geometry", "planning", "placement", "solving")
# Where the wall clock and random bytes enter; everything else is handed them.
CLOCK_AND_CHANCE = {"store/runtime.py", "store/connections.py"}
# How alike two names are is no amount of anything.
FLOATS_ALLOWED = {"geometry/finding.py"}
LINES_MAX = 450
FUNCTION_LINES_MAX = 70


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_uses_another_one_only_by_its_open_modules(room):
    walled = []
    for path in (SOURCE / room).glob("*.py"):
        for module in imported(path):
            parts = module.split(".")
            if parts[0] != "apportion" or len(parts) < 3 or parts[1] not in ROOMS:
                continue
            if parts[1] != room and parts[2] not in OPEN_TO_OTHERS:
                walled.append(f"{name_of(path)} imports {module}")
    assert not walled


def test_each_room_runs_only_its_own_sql():
    foreign = [
        f"{name_of(path)} loads {package}"
        for path in modules()
        for package in re.findall(r'= load\("apportion\.(\w+)"\)', path.read_text("utf-8"))
        if package != name_of(path).split("/")[0]
    ]
    assert not foreign


def test_only_named_modules_read_the_clock_or_draw_random_numbers():
    banned = re.compile(
        r"datetime\.now\(|utcnow\(|time\.time\(|uuid4\(|uuid1\(|os\.urandom|secrets\.|random\.random"
    )
    services = {*ROOMS, *PURE, "store", "demo"}
    found = [
        name_of(path)
        for path in modules()
        if name_of(path).split("/")[0] in services
        and name_of(path) not in CLOCK_AND_CHANCE
        and banned.search(path.read_text("utf-8"))
    ]
    assert not found


def test_no_file_or_function_is_too_long_to_read():
    long = []
    for path in [*modules(), *sorted(TESTS.rglob("*.py"))]:
        name, text = path.relative_to(ROOT), path.read_text("utf-8")
        if text.count("\n") > LINES_MAX:
            long.append(f"{name} has {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    long.append(f"{name}: {node.name} has {lines} lines")
    assert not long


def test_nothing_is_left_open_in_code():
    mark = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
    assert not [name_of(path) for path in modules() if mark.search(path.read_text("utf-8"))]


def test_no_allocation_or_accounting_uses_floating_point():
    rooms = {*ROOMS, *PURE}
    floats = []
    for path in modules():
        if name_of(path).split("/")[0] not in rooms or name_of(path) in FLOATS_ALLOWED:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, float):
                floats.append(f"{name_of(path)}:{node.lineno} {node.value}")
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "float"
            ):
                floats.append(f"{name_of(path)}:{node.lineno} float()")
    assert not floats


def test_every_public_module_says_what_it_is_for():
    silent = [
        name_of(path)
        for path in modules()
        if path.read_text("utf-8").strip()
        and not ast.get_docstring(ast.parse(path.read_text("utf-8")))
    ]
    assert not silent


def test_the_type_checker_refuses_sql_that_is_put_together_at_run_time(tmp_path):
    code = tmp_path / "concatenated.py"
    code.write_text(
        "from apportion.store.connections import Connection\n\n\n"
        "async def find(connection: Connection, name: str) -> None:\n"
        '    await connection.execute("SELECT * FROM pools WHERE name = \'" + name + "\'")\n'
    )
    checked = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, str(code)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert checked.returncode == 1
    assert "reportCallIssue" in checked.stdout or "reportArgumentType" in checked.stdout
