"""Named SQL: what the file says is what a name gives, and every slip in a file is loud."""

import pytest

from apportion.store import sql
from apportion.store.sql import Queries

TWO = """-- The queries of something.

-- name: find_pool
-- 100% of what is known of it; takes no lock.
SELECT * FROM pools -- all columns
    WHERE id = %(id)s;

-- name: drop_pool
DELETE FROM pools;
"""


def test_a_name_gives_its_statement_without_the_comments_around_it():
    queries = Queries("a.room", TWO)
    assert dict(queries) == {
        "find_pool": "SELECT * FROM pools -- all columns\n    WHERE id = %(id)s;",
        "drop_pool": "DELETE FROM pools;",
    }


def test_an_unknown_name_says_which_there_are():
    with pytest.raises(
        KeyError, match=r"a\.room has no query find \(it has drop_pool, find_pool\)"
    ):
        Queries("a.room", TWO)["find"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (TWO + "-- name: find_pool\nSELECT 1;", "two queries are named find_pool"),
        ("SELECT 1;\n" + TWO, "SQL before the first"),
        ("-- name: empty\n-- only words\n" + TWO, "the query empty is empty"),
        ("-- name: Find-Pool\nSELECT 1;", "is no query name"),
        ("-- name:\nSELECT 1;", "is no query name"),
        ("-- name: two words\nSELECT 1;", "is no query name"),
    ],
)
def test_a_slip_in_a_file_is_refused(text: str, why: str):
    with pytest.raises(ValueError, match=why):
        Queries("a.room", text)


def test_a_package_is_read_from_its_own_file(tmp_path, monkeypatch: pytest.MonkeyPatch):
    room = tmp_path / "a_room_for_this_test"
    room.mkdir()
    (room / "__init__.py").touch()
    (room / "queries.sql").write_text(TWO)
    monkeypatch.syspath_prepend(tmp_path)
    assert set(sql.load("a_room_for_this_test")) == {"find_pool", "drop_pool"}
