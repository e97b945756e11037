"""What all tests share: a real PostgreSQL that starts when a test first asks for one."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

from apportion.store.connections import open_pool
from apportion.testing import postgres as testing_postgres

settings.register_profile("default", max_examples=50, deadline=None, print_blob=True)
settings.register_profile("thorough", max_examples=1000, deadline=None, print_blob=True)
PROFILE = os.environ.get("APPORTION_HYPOTHESIS", "default")
settings.load_profile(PROFILE)


def pytest_report_header() -> str:
    programs = os.environ.get("APPORTION_TEST_PG_BIN", "the packaged ones")
    return f"hypothesis profile: {PROFILE}; PostgreSQL programs: {programs}"


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def postgres():
    """Give the dsn of a server of this test process (under xdist, of this worker) alone."""
    with testing_postgres.running() as dsn:
        yield dsn


@pytest.fixture(scope="session")
async def template(anyio_backend: str, postgres: str):
    return await testing_postgres.make_template(postgres)


@pytest.fixture
async def dsn(anyio_backend: str, template: testing_postgres.Template):
    """Give the dsn of a fresh, migrated database."""
    async with template.clone() as dsn:
        yield dsn


@pytest.fixture(scope="session")
def let_others_pass():
    """Give a function that lets other accounts through to a path below pytest's private ones."""

    def let(path: Path) -> Path:
        for directory in (path, *path.parents):
            if directory.stat().st_uid == os.geteuid():
                directory.chmod(directory.stat().st_mode | 0o011)
        return path

    return let


@pytest.fixture
def open_path(tmp_path: Path, let_others_pass):
    """Give a directory as tmp_path, that other accounts can pass through."""
    return let_others_pass(tmp_path)


@pytest.fixture
async def db(dsn: str):
    """Give a pool of connections to a fresh, migrated database."""
    async with open_pool(dsn) as pool:
        yield pool
