"""Pictures of a server's GPUs: every unit is somebody's, free, or said not to be known."""

import pytest

from apportion.cli.pictures import label, picture, profile_there, title
from apportion.nodes.schemas import AtomView, GpuView


def gpu(split: str, ruler: int, **fields: object) -> GpuView:
    return GpuView.model_validate(
        {
            "id": "GPU-1",
            "pool_id": "pool_1",
            "node": "n1",
            "index": 3,
            "product": "NVIDIA H100 80GB HBM3",
            "model": "H100",
            "board": "h100-sxm5-80gb",
            "memory_mib": 81559,
            "numa_node": 0,
            "split": split,
            "ruler": ruler,
            "layout_generation": 1,
            "unbookable_reason": None,
            **fields,
        }
    )


def atom(profile: str, units: str) -> AtomView:
    return AtomView.model_validate(
        {
            "id": f"GPU-1/{profile}/{units}",
            "pool_id": "pool_1",
            "gpu_id": "GPU-1",
            "node": "n1",
            "class": "gpu.mig",
            "units": units,
            "share": "1/7",
            "bookable": True,
            "reason": None,
            "attributes": {"migProfile": profile},
        }
    )


def body(lines: list[str]) -> list[str]:
    return [cell.strip() for cell in lines[1].strip("│|").replace("|", "│").split("│")]


@pytest.fixture(autouse=True)
def no_colour(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")


def test_the_title_says_which_gpu_how_it_is_split_and_what_ails_it():
    assert title(gpu("mig", 9)) == "n1 GPU 3: NVIDIA H100 80GB HBM3, MIG"
    ill = gpu("none", 1, unbookable_reason="failed")
    assert title(ill).endswith(", whole (unbookable: failed)")


def test_mig_instances_are_held_free_or_not_cut():
    atoms = [atom("3g.40gb", "{[4,8)}"), atom("2g.20gb", "{[0,2)}")]
    lines = picture(gpu("mig", 9), atoms, {"{[4,8)}": "3g.40gb ana"}, free="free")
    assert body(lines) == ["2g.20gb free", "not cut", "3g.40gb ana"]


def test_what_was_not_looked_at_is_not_called_free():
    atoms = [atom("3g.40gb", "{[4,8)}"), atom("3g.40gb", "{[0,4)}")]
    lines = picture(gpu("mig", 9), atoms, {"{[4,8)}": "3g.40gb ana"}, free=None)
    assert body(lines) == ["3g.40gb", "3g.40gb ana"]
    lines = picture(gpu("shares", 100), [], {"{[0,50),[101,102)}": "ana"}, free=None)
    assert body(lines) == ["ana", "not shown"]


def test_an_instance_with_an_engine_is_drawn_by_its_memory_slices():
    atoms = [atom("1g.10gb+me", "{[0,1),[8,9)}")]
    lines = picture(gpu("mig", 9), atoms, {"{[0,1),[8,9)}": "1g.10gb+me b"}, free="free")
    assert "1g.10gb+me b" in "\n".join(lines)
    assert len([line for line in lines if "not cut" in line]) == 1


def test_a_whole_booking_covers_every_unit_whatever_the_ruler():
    assert body(picture(gpu("none", 1), [], {"{[0,)}": "eve"}, free="free")) == ["eve"]
    assert body(picture(gpu("slots", 4), [], {"{[0,)}": "eve"}, free="free")) == ["eve"]


def test_slots_that_are_apart_belong_to_one_holder():
    lines = picture(gpu("slots", 4), [], {"{[0,1),[2,3)}": "ana"}, free="free")
    assert body(lines) == ["ana", "free", "ana", "free"]


def test_a_board_that_no_catalogue_knows_is_one_unit():
    assert body(picture(gpu("mig", 1, board=None), [], {}, free="free")) == ["free"]


def test_of_places_that_are_merely_possible_only_what_is_held_or_there_is_drawn():
    possible = [
        atom("1g.10gb", "{[0,1)}"),
        atom("1g.10gb+me", "{[0,1),[8,9)}"),
        atom("2g.20gb", "{[0,2)}"),
        atom("3g.40gb", "{[0,4)}"),
        atom("3g.40gb", "{[4,8)}"),
    ]
    drawn = picture(gpu("mig", 9), possible, {"{[0,2)}": "2g.20gb this"}, free=None)
    assert body(drawn) == ["2g.20gb this", "not shown"]
    possible[-1].attributes["migUuid"] = "MIG-1"
    drawn = picture(gpu("mig", 9), possible, {}, free="free")
    assert body(drawn) == ["free", "3g.40gb free"]


def test_of_two_profiles_on_the_same_units_the_one_that_is_held_is_named():
    possible = [atom("2g.20gb", "{[0,2)}"), atom("1g.20gb", "{[0,2)}")]
    for profile, other in (("2g.20gb", "1g.20gb"), ("1g.20gb", "2g.20gb")):
        held = {"{[0,2)}": label(profile, "this")}
        drawn = "\n".join(picture(gpu("mig", 9), possible, held, free=None))
        assert f"{profile} this" in drawn
        assert other not in drawn


def test_of_two_profiles_on_the_same_units_the_one_that_is_there_is_named():
    possible = [atom("2g.20gb", "{[0,2)}"), atom("1g.20gb", "{[0,2)}")]
    possible[0].attributes["migUuid"] = "MIG-1"
    assert body(picture(gpu("mig", 9), possible, {}, free=None)) == ["2g.20gb", "not shown"]


def test_what_has_no_profile_is_labelled_by_its_holder():
    assert label(None, "ana") == "ana"


def test_the_profile_on_some_units_is_told_where_one_can_be_told():
    atoms = [atom("2g.20gb", "{[0,2)}"), atom("1g.20gb", "{[0,2)}"), atom("3g.40gb", "{[4,8)}")]
    assert profile_there(atoms, "{[4,8)}") == "3g.40gb"
    assert profile_there(atoms, "{[0,2)}") is None
    assert profile_there(atoms, "{[0,)}") is None
    atoms[1].attributes["migUuid"] = "MIG-1"
    assert profile_there(atoms, "{[0,2)}") == "1g.20gb"


def test_what_cannot_be_booked_is_not_called_free():
    foreign = [atom("1g.10gb", "{[6,7)}"), atom("3g.40gb", "{[4,8)}")]
    for each in foreign:
        each.bookable, each.reason = False, "foreign_instance"
    foreign[0].attributes["migUuid"] = "MIG-1"
    possible = [*foreign, atom("3g.40gb", "{[0,4)}"), atom("1g.10gb", "{[4,5)}")]
    drawn = "\n".join(picture(gpu("mig", 9), possible, {}, free="free"))
    assert "1g.10gb foreign_instance" in drawn
    assert body(picture(gpu("mig", 9), possible, {}, free="free"))[0] == "free"
    del foreign[0].attributes["migUuid"]
    assert body(picture(gpu("mig", 9), possible, {}, free="free")) == ["free", "foreign_instance"]
    assert body(picture(gpu("mig", 9), possible, {}, free=None)) == ["not shown"]


def test_an_instance_of_a_fixed_layout_that_cannot_be_booked_says_why():
    atoms = [atom("3g.40gb", "{[0,4)}"), atom("3g.40gb", "{[4,8)}")]
    atoms[0].bookable, atoms[0].reason = False, "node_stale"
    cells = body(picture(gpu("mig", 9), atoms, {}, free="free"))
    assert cells == ["3g.40gb node_stale", "3g.40gb free"]
