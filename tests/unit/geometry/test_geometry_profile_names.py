"""Profile names: what is one, what is none, and which names are the same."""

import pytest

from apportion.errors import InvalidInputError
from apportion.geometry import ProfileName, board_by_key, parse_profile

A100_40 = board_by_key("a100-sxm4-40gb")
RTX = board_by_key("rtx-pro-6000-blackwell-server")


@pytest.mark.parametrize(
    "text",
    [
        "1g.5gb",
        "1c.1g.5gb",
        "1g.5gb+me",
        "1g.5gb+me.all",
        "1g.5gb-me",
        "1g.5gb+gfx",
        "0g.0gb",
        "10000g.500000gb",
        "1g.5gb+me,you,them",
    ],
)
def test_a_well_formed_name_is_read_whether_or_not_a_board_has_it(text):
    parse_profile(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " 1g.5gb",
        "1g.5gb ",
        "1g.5gb\n",
        "1 g.5gb",
        "1g.5",
        "1g.gb",
        "g.5gb",
        "1g.5gbk",
        "1r.1g.5gb",
        "1g.5gb+",
        "1g.5gb+,,",
        "1g.5gb+me,me",
        "1g.5gb+me-gfx",
        "1g.5gb+.me",
        "1g.5gb+2x",
        "1g.5gb+\u017f",
        "1g.5gb+\u212a",
        "1_0g.5gb",
        "\u0661g.5gb",
        "-1g.5gb",
        "3c.1g.5gb",
        "0c.1g.5gb",
        "mig-mig-1g.5gb",
        "amd.com/mig-1g.5gb",
        "9" * 5000 + "g.5gb",
        "1g.5gb+" + "a" * 500,
    ],
)
def test_what_is_no_profile_is_refused_as_that(text):
    with pytest.raises(InvalidInputError, match="not a MIG profile") as caught:
        parse_profile(text, field="devices[0].profile")
    assert caught.value.field == "devices[0].profile"
    assert caught.value.details["reason"] == "not_a_profile"
    assert caught.value.allowed


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("1g.10gb", "1g.10gb"),
        ("1g.10gb+me", "1g.10gb+me"),
        ("nvidia.com/mig-1g.10gb.me", "1g.10gb+me"),
        ("1g.24gb-me", "1g.24gb-me"),
        ("2G.20GB", "2g.20gb"),
        ("mig-3g.40gb", "3g.40gb"),
        ("MIG-1g.24gb.ME.ALL", "1g.24gb+me.all"),
        ("1c.1g.10gb", "1g.10gb"),
        ("7c.7g.80gb", "7g.80gb"),
        ("1g.5gb+you,me", "1g.5gb+me,you"),
    ],
)
def test_every_spelling_reads_as_the_drivers_own(text, canonical):
    assert str(parse_profile(text)) == canonical
    assert parse_profile(text) == parse_profile(canonical)


@pytest.mark.parametrize(
    ("resource", "profile_id"),
    [
        ("nvidia.com/mig-1g.24gb", 14),
        ("nvidia.com/mig-1g.24gb.me", 21),
        ("nvidia.com/mig-1g.24gb.gfx", 47),
        ("nvidia.com/mig-1g.24gb.me.all", 65),
        ("nvidia.com/mig-1g.24gb-me", 67),
    ],
)
def test_with_and_without_media_engines_stay_five_different_profiles(resource, profile_id):
    assert RTX.profile(resource).id == profile_id


def test_a_compute_instance_is_refused_with_its_gpu_instance_named():
    with pytest.raises(
        InvalidInputError, match=r"1 of the 3 compute slices of a 3g\.20gb"
    ) as caught:
        parse_profile("1c.3g.20gb")
    assert caught.value.details == {"reason": "compute_instance", "gpu_instance": "3g.20gb"}


@pytest.mark.parametrize("text", ["1g.5gb+me.all", "1g.5gb-me", "1g.5gb+gfx", "1g.24gb"])
def test_a_profile_that_the_board_lacks_is_told_from_no_profile_at_all(text):
    with pytest.raises(InvalidInputError, match="has no such profile") as caught:
        A100_40.profile(text, field="mig")
    assert caught.value.allowed == "1g.5gb, 1g.5gb+me, 1g.10gb, 2g.10gb, 3g.20gb, 4g.20gb, 7g.40gb"
    assert caught.value.details["reason"] == "no_such_profile"
    assert str(caught.value).startswith("mig: ")


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("3g.40gb", "3g.20gb"),
        ("1g.24gb", "1g.10gb"),
        ("1g.5gb-me", "1g.5gb"),
        ("8g.80gb", "7g.40gb"),
    ],
)
def test_the_nearest_profile_keeps_the_compute_slices_where_it_can(text, nearest):
    assert A100_40.nearest_profile(parse_profile(text)).name == nearest


def test_a_name_can_be_built_and_printed():
    name = ProfileName(compute=1, gigabytes=24, attributes=frozenset({"-me"}))
    assert str(name) == "1g.24gb-me"
    assert parse_profile("1g.24gb-me") == name
    assert parse_profile("1g.24gb+me") != name
