"""Each refusal of a real PostgreSQL comes out in our words, by the name of what was broken."""

import importlib.util
import pkgutil

import pytest
from psycopg import AsyncConnection, Error
from psycopg.errors import CheckViolation

import apportion
from apportion.errors import (
    ApportionError,
    ConflictError,
    InvalidInputError,
    QuotaExceededError,
    UnavailableError,
)
from apportion.store import errors
from apportion.store.connections import Pool, open_pool, transaction
from apportion.store.errors import Violation, guards, register, registered, translate

pytestmark = pytest.mark.anyio

TABLES = """
CREATE TABLE rooms (id int CONSTRAINT rooms_pkey PRIMARY KEY);
CREATE TABLE stays (
    id int CONSTRAINT stays_pkey PRIMARY KEY,
    room_id int NOT NULL CONSTRAINT stays_room_fkey REFERENCES rooms,
    guest text CONSTRAINT stays_guest_short CHECK (length(guest) < 9),
    nights int4range,
    CONSTRAINT stays_no_overlap EXCLUDE USING gist (room_id WITH =, nights WITH &&)
);
INSERT INTO rooms VALUES (1);
INSERT INTO stays VALUES (1, 1, 'Ada', '[1,5)');
"""


@pytest.fixture
async def house(db: Pool, monkeypatch: pytest.MonkeyPatch):
    """Give a pool with two small tables, and a registry that knows nothing of them."""
    monkeypatch.setattr(errors, "_meanings", {})
    async with transaction(db) as connection:
        await connection.execute(TABLES)
    return db


async def refusal_of(pool: Pool, statement, *values) -> ApportionError:
    with pytest.raises(ApportionError) as caught:
        async with transaction(pool) as connection:
            await connection.execute(statement, values or None)
    assert isinstance(caught.value.__cause__, Error)
    return caught.value


async def test_a_registered_constraint_speaks_for_itself(house: Pool):
    seen: list[Violation] = []

    def taken(violation: Violation) -> ApportionError:
        seen.append(violation)
        return QuotaExceededError("no room left", field="room")

    register({"stays_no_overlap": taken})
    refusal = await refusal_of(house, "INSERT INTO stays VALUES (2, 1, 'Bob', '[4,6)')")
    assert isinstance(refusal, QuotaExceededError)
    assert (seen[0].constraint, seen[0].table) == ("stays_no_overlap", "stays")
    assert "(1, [1,5))" in seen[0].detail


async def test_a_guard_is_our_own_fault(house: Pool):
    register(guards("stays_guest_short"))
    refusal = await refusal_of(house, "INSERT INTO stays VALUES (2, 1, 'Bartholomew', '[8,9)')")
    assert (type(refusal), refusal.code) == (ApportionError, "INTERNAL")
    assert refusal.details["constraint"] == "stays_guest_short"


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("INSERT INTO rooms VALUES (1)", "this exists already in rooms"),
        ("INSERT INTO stays VALUES (2, 7, 'Bob', '[8,9)')", "what stays refers to was changed"),
        ("DELETE FROM rooms", "what stays refers to was changed"),
    ],
)
async def test_keys_that_no_room_names_go_by_rule(house: Pool, statement: str, message: str):
    refusal = await refusal_of(house, statement)
    assert isinstance(refusal, ConflictError)
    assert message in refusal.message


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO stays VALUES (2, NULL, 'Bob', '[8,9)')",
        "INSERT INTO stays VALUES (2, 1, 'Bartholomew', '[8,9)')",
        "INSERT INTO nowhere VALUES (1)",
    ],
)
async def test_what_should_never_be_sent_is_internal(house: Pool, statement: str):
    assert type(await refusal_of(house, statement)) is ApportionError


@pytest.mark.parametrize(
    "value", [2**31, "a\x00b", "4000000000000-01-01"], ids=["number", "nul", "instant"]
)
async def test_a_value_that_cannot_be_stored_is_bad_input(house: Pool, value: object):
    kind = {int: "%s::int8::int4", str: "%s::timestamptz"}[type(value)]
    statement = f"SELECT {kind}"  # the kinds above, and nothing else
    assert isinstance(await refusal_of(house, statement, value), InvalidInputError)


async def test_a_lost_connection_is_unavailable_and_the_next_one_works(house: Pool):
    refusal = await refusal_of(house, "SELECT pg_terminate_backend(pg_backend_pid())")
    assert isinstance(refusal, UnavailableError)
    async with transaction(house) as connection:
        await connection.execute("SELECT 1")


async def test_connections_of_before_a_restart_are_replaced_unseen(house: Pool):
    async with await AsyncConnection.connect(house.conninfo) as other:
        await other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    async with transaction(house) as connection:
        await connection.execute("SELECT 1")


@pytest.mark.parametrize(
    "limit", ["SET LOCAL lock_timeout = '10ms'", "SET LOCAL statement_timeout = '10ms'"]
)
async def test_waiting_too_long_for_a_lock_is_unavailable(house: Pool, limit: str):
    async with transaction(house) as holder:
        await holder.execute("LOCK TABLE stays")
        refusal = await refusal_of(house, f"{limit}; SELECT FROM stays")
    assert isinstance(refusal, UnavailableError)
    assert "took too long" in refusal.message


async def _gone(house: Pool, pid: int):
    """Wait for the end of a session: what it says last is lost to whoever asks just before it."""
    async with house.connection() as other:
        await other.set_autocommit(True)
        query = "SELECT 1 FROM pg_stat_activity WHERE pid = %s"
        while await (await other.execute(query, [pid])).fetchall():
            pass
        await other.set_autocommit(False)


async def test_a_transaction_that_stood_still_for_too_long_is_unavailable(house: Pool):
    async def stand_still():
        async with transaction(house) as connection:
            await connection.execute("SET LOCAL idle_in_transaction_session_timeout = '10ms'")
            await _gone(house, connection.info.backend_pid)
            await connection.execute("SELECT 1")

    with pytest.raises(UnavailableError, match="took too long"):
        await stand_still()


async def test_a_database_that_takes_no_writes_is_unavailable(house: Pool):
    refusal = await refusal_of(house, "SET TRANSACTION READ ONLY; DELETE FROM stays")
    assert isinstance(refusal, UnavailableError)


async def test_no_free_connection_is_unavailable(house: Pool):
    async with open_pool(house.conninfo, size=1) as pool, transaction(pool):
        pool.timeout = 0.05
        refusal = await refusal_of(pool, "SELECT 1")
    assert "no connection to the database is free" in refusal.message


def test_a_name_is_registered_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(errors, "_meanings", {})
    register(guards("one", "two"))
    with pytest.raises(ValueError, match="registered already: two"):
        register(guards("two", "three"))
    assert registered() == {"one", "two"}


def test_a_refusal_made_without_a_server_is_translated_too():
    assert type(translate(CheckViolation("said by nobody"))) is ApportionError


async def test_every_constraint_of_the_schema_has_a_meaning(db: Pool):
    """NOT NULL, primary and foreign keys go by rule; a room must say what the others mean."""
    for room in pkgutil.iter_modules(apportion.__path__, "apportion."):
        if room.ispkg and importlib.util.find_spec(f"{room.name}.service"):
            importlib.import_module(f"{room.name}.service")
    async with transaction(db) as connection:
        cursor = await connection.execute("""
            SELECT conname AS name, contype IN ('c', 'u', 'x') AS needed
            FROM pg_constraint WHERE connamespace = 'public'::regnamespace
            UNION
            SELECT relname, true FROM pg_index JOIN pg_class c ON c.oid = indexrelid
            WHERE indisunique AND NOT indisprimary AND relnamespace = 'public'::regnamespace
        """)
        rows = await cursor.fetchall()
    assert sorted({row["name"] for row in rows if row["needed"]} - registered()) == []
    assert sorted(registered() - {row["name"] for row in rows}) == []
