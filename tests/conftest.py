"""What all tests share: a real PostgreSQL that starts when a test first asks for one."""

import os
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings

from apportion.authority.service import ensure_root
from apportion.nodes.service import sync_placements
from apportion.store.connections import open_pool, transaction
from apportion.store.runtime import Runtime
from apportion.testing import postgres as testing_postgres
from apportion.testing.builders import KEY, Clock
from every_query import EveryQuery

settings.register_profile("default", max_examples=50, deadline=None, print_blob=True)
settings.register_profile("thorough", max_examples=1000, deadline=None, print_blob=True)
PROFILE = os.environ.get("APPORTION_HYPOTHESIS", "default")
settings.load_profile(PROFILE)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--every-query", action="store_true", help="fail if a statement was not run")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("every_query"):
        patch = pytest.MonkeyPatch()
        config.add_cleanup(patch.undo)
        config.pluginmanager.register(EveryQuery(patch))


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
async def migrated(anyio_backend: str, postgres: str):
    """Give the template of a database that has its tables, and no rows."""
    return await testing_postgres.make_template(postgres)


@pytest.fixture(scope="session")
async def template(anyio_backend: str, migrated: testing_postgres.Template):
    """Give the template of a database that a server has started on: it has the root tenant."""

    async def start(dsn: str):
        async with open_pool(dsn, size=1) as db, transaction(db) as connection:
            await ensure_root(Runtime(db, Clock(), key=KEY), connection)
            await sync_placements(connection)

    return await migrated.filled(start)


@pytest.fixture
async def dsn(anyio_backend: str, template: testing_postgres.Template):
    """Give the dsn of a fresh copy of the template."""
    async with template.clone() as dsn:
        yield dsn


@contextmanager
def open_directory():
    """Make a directory that other accounts can pass through.

    Those of pytest's tmp_path they cannot, and opening them does not last: the next pytest to start
    on the machine closes their parent again.
    """
    with TemporaryDirectory(prefix="apportion-open-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.fixture
def open_path():
    with open_directory() as path:
        yield path


@pytest.fixture(scope="module")
def open_module_path():
    with open_directory() as path:
        yield path


@pytest.fixture
async def db(dsn: str):
    """Give a pool of connections to a fresh copy of the template."""
    async with open_pool(dsn) as pool:
        yield pool
