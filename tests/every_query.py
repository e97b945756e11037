"""A subset of the tests that is to run every statement: it fails where it leaves one out."""

from pathlib import Path

import pytest

from apportion.store import sql

ROOMS = Path(sql.__file__).parents[1]


def _names(package: str, queries: sql.Queries) -> set[str]:
    return {f"{package} {name}" for name in queries}


class EveryQuery:
    """Notes which statements of the rooms are run, in this process and in those of xdist."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: set[str] = set()
        ask = sql.Queries.__getitem__

        def noted(queries: sql.Queries, name: str):
            self.seen.add(f"{queries._package} {name}")
            return ask(queries, name)

        monkeypatch.setattr(sql.Queries, "__getitem__", noted)

    def missing(self) -> list[str]:
        rooms = [f"apportion.{file.parent.name}" for file in ROOMS.glob("*/queries.sql")]
        return sorted(set().union(*(_names(room, sql.load(room)) for room in rooms)) - self.seen)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        self.seen.update(getattr(node, "workeroutput", {}).get("queries", ()))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session):
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["queries"] = sorted(self.seen)
        elif self.missing():
            session.exitstatus = max(session.exitstatus, pytest.ExitCode.TESTS_FAILED)

    def pytest_terminal_summary(self, terminalreporter):
        for query in self.missing():
            terminalreporter.write_line(f"no test ran the statement {query}", red=True)
