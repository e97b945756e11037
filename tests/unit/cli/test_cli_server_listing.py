"""What commands of the server share: columns over pages, documents, flags named in refusals."""

import argparse
import io
import json
import sys

import pytest
from pydantic import BaseModel

from apportion.cli.connection import naming
from apportion.cli.documents import parse_json, read_json
from apportion.cli.listing import Columns, print_list
from apportion.cli.pool_words import read_limit
from apportion.client import Page
from apportion.errors import InvalidInputError


def test_columns_have_one_header_and_never_become_narrower():
    columns = Columns(("name", "gpus"))
    assert columns.text([("a-long-name", 8)]) == "NAME         GPUS\na-long-name     8"
    assert columns.text([("b", 16)]) == "b              16"
    assert columns.text([("an-even-longer-name", 1)]) == "an-even-longer-name     1"


@pytest.mark.parametrize(
    ("field", "named"),
    [
        ("duration", "--for"),
        ("policy.replicas", "--replicas"),
        ("policy.maxPending", "--policy (policy.maxPending)"),
        ("policyholder", "policyholder"),
        ("owner_quota[0]", "--quota (owner_quota[0])"),
        (None, None),
    ],
)
def test_a_refusal_names_the_flag_of_the_closest_field(field, named):
    flags = {
        "duration": "--for",
        "policy": "--policy",
        "policy.replicas": "--replicas",
        "owner_quota": "--quota",
    }
    with pytest.raises(InvalidInputError) as caught, naming(flags):
        raise InvalidInputError("is odd", field=field)
    assert caught.value.field == named


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1, column 1"),
        ('{"a": 1,}', "line 1, column"),
        ("[NaN]", "no number of JSON"),
        ('{"a": 1, "a": 2}', "names a field twice"),
        ('"\\ud800"', "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ("1" * 5000, "cannot be read"),
    ],
)
def test_json_is_read_strictly(text, said):
    with pytest.raises(InvalidInputError, match=said) as caught:
        parse_json(text, field="FILE")
    assert caught.value.field == "FILE"


def test_a_document_comes_from_a_file_or_from_standard_input(tmp_path, monkeypatch):
    file = tmp_path / "n1.json"
    file.write_bytes(b'\xef\xbb\xbf{"node": "n1"}')  # an editor's byte order mark
    assert read_json(str(file), field="FILE") == {"node": "n1"}
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"[1, 2]")))
    assert read_json("-", field="FILE") == [1, 2]


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "latin").write_bytes(b'{"node": "caf\xe9"}')
    for source, said in [
        ("nowhere", "No such file"),
        ("latin", "UTF-8"),
        ("", "directory|No such"),
    ]:
        with pytest.raises(InvalidInputError, match=said):
            read_json(str(tmp_path / source), field="FILE")


@pytest.mark.parametrize(
    "text", ["-1", ".5", "1.", "1/2/3", "1.5/2", "", "Unlimited", "1_0", "1e3", "٤", "1/٤"]
)
def test_what_is_no_limit_is_refused(text):
    with pytest.raises(InvalidInputError, match="is no limit"):
        read_limit(text, field="LIMIT")


@pytest.mark.parametrize(
    ("text", "limit"),
    [("0", 0), ("40", 40), ("unlimited", "unlimited"), ("2.5", "2.5"), ("7/2", "7/2")],
)
def test_a_limit_is_a_number_kept_exactly_or_the_word_unlimited(text, limit):
    assert read_limit(text, field="LIMIT") == limit


class Row(BaseModel):
    name: str


def paged(count: int, fetched: list[str | None]):
    """Give a list of so many rows, and note each page that is asked for."""

    def fetch(*, limit: int, cursor: str | None) -> Page[Row]:
        fetched.append(cursor)
        start = int(cursor or 0)
        end = min(start + limit, count)
        items = [Row(name=f"row-{at}") for at in range(start, end)]
        following = str(end) if end < count else None
        return Page(items, following, lambda after: fetch(limit=limit, cursor=after))

    return fetch


def listed(count: int, fetched: list[str | None], **flags: object) -> int:
    args = argparse.Namespace(
        **{"all": False, "limit": None, "cursor": None, "output": "table", **flags}
    )
    return print_list(
        args, paged(count, fetched), ("name",), lambda row: (row.name,), empty="None."
    )


def test_a_table_of_everything_comes_page_by_page_under_one_header(capsys):
    fetched: list[str | None] = []
    assert listed(2500, fetched, all=True) == 0
    said = capsys.readouterr()
    assert fetched == [None, "1000", "2000"]
    assert said.out.splitlines() == ["NAME", *(f"row-{at}" for at in range(2500))]
    assert said.err == ""


def test_one_page_says_on_stderr_how_to_go_on(capsys):
    fetched: list[str | None] = []
    listed(2500, fetched)
    said = capsys.readouterr()
    assert (fetched, len(said.out.splitlines())) == ([None], 101)
    assert said.err == "(more: --all, or --cursor 100)\n"


def test_the_last_page_says_nothing_more(capsys):
    listed(100, [])
    assert capsys.readouterr().err == ""


def test_json_of_a_page_has_its_cursor_and_of_everything_none(capsys):
    listed(3, [], limit=2, output="json")
    assert json.loads(capsys.readouterr().out) == {
        "items": [{"name": "row-0"}, {"name": "row-1"}],
        "next_cursor": "2",
    }
    listed(2500, [], all=True, output="json")
    document = json.loads(capsys.readouterr().out)
    assert (len(document["items"]), document["next_cursor"]) == (2500, None)


def test_an_empty_list_says_what_to_do_in_a_table_and_nothing_in_json(capsys):
    listed(0, [])
    assert capsys.readouterr().out == "None.\n"
    listed(0, [], output="json")
    assert json.loads(capsys.readouterr().out)["items"] == []
