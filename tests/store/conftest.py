"""Tests of the schema begin with tables that have no rows."""

import pytest


@pytest.fixture(scope="session")
def template(migrated):
    return migrated
