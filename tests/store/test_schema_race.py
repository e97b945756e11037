"""Sixteen connections book the same GPUs at once, with plain INSERTs and nothing above them."""

import asyncio
from collections import Counter

import pytest
from psycopg import sql
from test_schema_rules import GROUND, booking, whole

import apportion.bookings.service  # noqa: F401 - registers what its constraints mean
from apportion.errors import ConflictError
from apportion.store.connections import Pool, open_pool, retrying, transaction

pytestmark = pytest.mark.anyio
CONNECTIONS = 16
AFTERNOON = "[2026-03-02 12:00+00,2026-03-02 14:00+00)"


@pytest.fixture
async def crowd(dsn: str):
    async with open_pool(dsn, size=CONNECTIONS) as pool:
        async with transaction(pool) as connection:
            await connection.execute(GROUND)
        yield pool


def slot(number: int, **changes):
    where = {"pool_id": "slots", "gpu_id": 3, "units": f"{{[{number},{number + 1})}}"}
    return booking(**{"class": "gpu.slot", "atom_id": None, **where, **changes})


async def race(pool: Pool, wanted: list[tuple[sql.Composed, list[object]]]) -> list[str]:
    """Book all at once; answer for each "won", or in what words it lost."""

    async def book(statement: sql.Composed, values: list[object]) -> str:
        async def work(connection):
            await connection.execute(statement, values)

        try:
            # Two INSERTs that clash may wait for each other: that is tried again, never an answer.
            await retrying(pool, work, attempts=20)
        except ConflictError as refusal:
            return str(refusal)
        return "won"

    return await asyncio.gather(*(book(*each) for each in wanted))


async def booked(pool: Pool) -> int:
    async with transaction(pool) as connection:
        cursor = await connection.execute("SELECT count(*) AS count FROM bookings")
        row = await cursor.fetchone()
    assert row is not None
    return row["count"]


async def test_each_slot_goes_to_one_and_each_loser_is_told_of_the_conflict_in_words(crowd: Pool):
    wanted = [slot(number % 4, piece=number) for number in range(CONNECTIONS)]
    answers = Counter(await race(crowd, wanted))
    assert answers.pop("won") == 4
    assert sum(answers.values()) == 12
    assert all("somebody else has booked units of this GPU" in words for words in answers)
    assert await booked(crowd) == 4


async def test_what_shares_no_unit_or_no_instant_is_all_booked(crowd: Pool):
    wanted = [slot(n % 4, piece=n, **({"during": AFTERNOON} if n > 3 else {})) for n in range(8)]
    assert await race(crowd, wanted) == ["won"] * 8
    assert await booked(crowd) == 8


async def test_an_instance_and_its_whole_gpu_never_both_win(crowd: Pool):
    wanted = [whole(piece=n) if n % 2 else booking(piece=n) for n in range(CONNECTIONS)]
    answers = Counter(await race(crowd, wanted))
    assert answers.pop("won") == 1
    assert sum(answers.values()) == CONNECTIONS - 1
    assert await booked(crowd) == 1
