"""Tests of what PostgreSQL itself does: they begin with tables that have no rows."""

from pathlib import Path

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker("oldest")


@pytest.fixture(scope="session")
def template(migrated):
    return migrated
