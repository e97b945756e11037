"""Ids: sorted by time, derived for ever, checked by kind."""

from datetime import UTC, datetime, timedelta

import pytest

from apportion.errors import InvalidInputError
from apportion.quantities.ids import check_id, derive_id, make_id

NOW = datetime(2026, 12, 1, tzinfo=UTC)


def test_an_id_is_the_layout_of_a_ulid_in_lower_case():
    # The ULID specification's own example of a time, 01ARYZ6S41; the entropy spells itself.
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=1469918176385)
    entropy = bytes.fromhex("6b94d5b9cf6b94d5b9cf")
    text = make_id("pool", now=moment, entropy=entropy)
    assert text == "pool_01aryz6s41deadbeefdeadbeef"


def test_a_later_id_sorts_after_an_earlier_one():
    early = make_id("pool", now=NOW, entropy=b"\xff" * 10)
    late = make_id("pool", now=NOW + timedelta(milliseconds=1), entropy=b"\x00" * 10)
    assert early < late


def test_entropy_must_be_ten_bytes():
    with pytest.raises(ValueError, match="10 bytes"):
        make_id("pool", now=NOW, entropy=b"short")


def test_a_derived_id_depends_on_every_part_and_its_borders():
    assert derive_id("gpu", "ab", "c") == derive_id("gpu", "ab", "c")
    ids = {
        derive_id("gpu", "ab", "c"),
        derive_id("gpu", "a", "bc"),
        derive_id("gpu", "abc"),
        derive_id("gpu", "abc", ""),
        derive_id("node", "ab", "c"),
    }
    assert len({text.partition("_")[2] for text in ids}) == 5


def test_derived_ids_never_change():
    assert derive_id("gpu", "GPU-0001") == "gpu_0gh6rrjvqjayhxes6q6xsa65cw"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "pool_",
        "node_01arz3ndektsv4rrffq69g5fav",
        "pool_01ARZ3NDEKTSV4RRFFQ69G5FAV",
        "pool_01arz3ndektsv4rrffq69g5fa",
        "pool_01arz3ndektsv4rrffq69g5favv",
        "pool_81arz3ndektsv4rrffq69g5fav",
        "pool_01arz3ndektsv4rrffq69g5fiu",
        "pool_01arz3ndektsv4rrffq69g5fav\n",
    ],
)
def test_what_is_no_id_of_the_kind_is_refused(text):
    with pytest.raises(InvalidInputError, match="is not a pool id") as caught:
        check_id("pool", text, "pool_id")
    assert caught.value.field == "pool_id"


def test_an_id_of_the_kind_is_returned():
    for text in (make_id("pool", now=NOW, entropy=bytes(10)), derive_id("pool", "x")):
        assert check_id("pool", text, "pool_id") == text
