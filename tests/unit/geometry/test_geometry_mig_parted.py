"""mig-parted files: read with their lines, each entry judged on the boards that it is meant for."""

import pytest

from apportion.errors import InvalidInputError
from apportion.geometry import read_mig_parted

FILE = """\
version: v1
mig-configs:
  all-disabled:
    - devices: all
      mig-enabled: false

  all-enabled:
    - devices: all
      mig-enabled: true
      mig-devices: {}

  # One name, two cuts: the filter tells the boards apart.
  all-1g.10gb:
    - device-filter: ["0x233010DE", "0x20B210DE"]
      devices: all
      mig-enabled: true
      mig-devices:
        "1g.10gb": 7
    - device-filter: "0x20B010DE"
      devices: [0, 3]
      mig-enabled: true
      mig-devices:
        "1g.10gb": 4

  all-2g.48gb.me.all:
    - devices: all
      mig-enabled: true
      mig-devices:
        "2g.48gb+me.all": 1
"""


def entry(devices, *, header="", enabled="true"):
    return f"""\
version: v1
mig-configs:
  mine:
    - devices: all
{header}      mig-enabled: {enabled}
      mig-devices: {devices}
"""


def the_problem(text):
    (only,) = read_mig_parted(text)
    return only.problem


def test_entries_come_with_their_lines_devices_and_filters():
    entries = read_mig_parted(FILE)
    assert [(e.config, e.line) for e in entries] == [
        ("all-disabled", 4),
        ("all-enabled", 8),
        ("all-1g.10gb", 14),
        ("all-1g.10gb", 19),
        ("all-2g.48gb.me.all", 26),
    ]
    assert [e.problem for e in entries] == [None] * 5
    assert entries[2].devices is None
    assert entries[2].device_filter == ("0x2330", "0x20B2")
    assert entries[3].devices == (0, 3)
    assert entries[3].cut == {"1g.10gb": 4}


def test_every_entry_has_its_layout_on_every_board_that_can_have_it():
    off, on, sevenths, quarters, media = read_mig_parted(FILE)
    assert len(off.layouts) == len(on.layouts) == 31
    assert not any(layout.mig_enabled for layout in off.layouts.values())
    assert set(sevenths.layouts) == {"h100-sxm5-80gb", "a100-sxm4-80gb"}
    assert sevenths.layouts["h100-sxm5-80gb"].counts == {"1g.10gb": 7}
    assert quarters.layouts["a100-sxm4-40gb"].counts == {"1g.10gb": 4}
    assert set(media.layouts) == {
        "rtx-pro-6000-blackwell-server",
        "rtx-pro-6000-blackwell-workstation",
    }


def test_profiles_of_two_boards_in_one_entry_are_a_problem_that_names_the_line():
    problem = the_problem(entry("{2g.20gb: 2, 3g.20gb: 1}"))
    assert problem.message == "line 4: no known board has 2g.20gb beside 3g.20gb"
    assert problem.details["config"] == "mine"


def test_too_many_instances_for_the_filtered_board_are_a_problem():
    filtered = '      device-filter: "0x20B010DE"\n'
    problem = the_problem(entry("{1g.10gb: 5}", header=filtered))
    assert problem.message == "line 4: 5 x 1g.10gb: at most 4 on NVIDIA A100-SXM4-40GB"
    assert problem.details["nearest"] == "all-1g.10gb"
    assert problem.field == "mig-configs.mine[0]"


def test_one_filtered_board_that_cannot_is_a_problem_although_others_can():
    filtered = '      device-filter: ["0x20B210DE", "0x20B010DE"]\n'
    (only,) = read_mig_parted(entry("{1g.10gb: 7}", header=filtered))
    assert set(only.layouts) == {"a100-sxm4-80gb"}
    assert "at most 4 on NVIDIA A100-SXM4-40GB" in only.problem.message


def test_one_bad_entry_does_not_hide_the_good_ones():
    good, bad = read_mig_parted(
        entry("{1g.5gb: 7}") + "  bad:\n    - {devices: all, "
        "mig-enabled: true, mig-devices: {1g.5gb: 8}}\n"
    )
    assert good.problem is None
    assert "line 8: 8 x 1g.5gb: at most 7" in bad.problem.message


def test_compute_instances_are_refused_with_the_reason():
    problem = the_problem(entry("{1c.3g.20gb: 2}"))
    assert "it shares that instance's memory" in problem.message


def test_boards_that_are_unknown_or_of_unknown_geometry_are_neither_right_nor_wrong():
    filtered = '      device-filter: ["0x2C3A10DE", "0x999910DE"]\n'
    (only,) = read_mig_parted(entry("{1g.16gb: 2}", header=filtered))
    assert (only.layouts, only.problem) == ({}, None)


def test_a_count_of_zero_asks_for_nothing():
    (only,) = read_mig_parted(entry("{1g.5gb: 0, 7g.80gb: 1}"))
    assert only.layouts["h100-sxm5-80gb"].counts == {"7g.80gb": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("a: [", "line 1: not YAML"),
        ("version: \x00", "not YAML"),
        ("[" * 5000, "nested too deeply"),
        ("- 1", "line 1: not a mapping"),
        ("version: v1", "line 1: mig-configs is missing"),
        ("version: v1\nversion: v1", "line 2: version is written twice"),
        ("version: v2\nmig-configs: {}", "line 1: unknown version v2"),
        ("version: v1\nmig-configs: {}", "line 2: there is no configuration in it"),
        ("version: v1\nmig-configs: {a: []}", "line 2: not a list with at least one entry"),
        ("version: v1\nmig-configs: &a\n  a: *a", "not a list"),
        ("version: v1\nextra: 1\nmig-configs: {}", "line 2: unexpected extra"),
        (entry("{1g.5gb: -1}"), "line 6: not a count: -1"),
        (entry("{1g.5gb: 1.0}"), "line 6: not a count: 1.0"),
        (entry("{1g.5gb: 0x7}"), "line 6: not a count: 0x7"),
        (entry('{1g.5gb: "7"}'), "line 6: not a count: 7"),
        (entry("{1g.5gb: 1, 1g.5gb: 2}"), "line 6: 1g.5gb is written twice"),
        (entry("{1g.5gb: 1}", enabled="false"), "line 4: mig-devices is given where MIG is not"),
        (entry("{}", enabled='"true"'), "line 5: not a truth value"),
        (entry("{}", header="      devices: [1]\n"), "line 5: devices is written twice"),
        (entry("{}", header="      mode: x\n"), "line 5: unexpected mode"),
        (entry("{}", header="      device-filter: T4\n"), "line 5: not a PCI device id"),
        (FILE.replace("[0, 3]", "[0, x]"), "line 20: not a count: x"),
        (FILE.replace("[0, 3]", "some"), "line 20: not a set of GPUs"),
        (FILE.replace("      mig-devices: {}\n", ""), "line 8: mig-devices is missing"),
    ],
)
def test_a_file_of_another_form_is_refused_with_the_line(text, message):
    with pytest.raises(InvalidInputError) as caught:
        read_mig_parted(text)
    assert message in caught.value.message
