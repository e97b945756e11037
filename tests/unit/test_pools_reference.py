"""The reference of pools says what the code says: classes, modes, resources, rights, rules."""

import re
from pathlib import Path
from typing import get_args

from apportion.doors.rights import RIGHTS
from apportion.nodes.service import TARGETS
from apportion.pools.creating import agent_of
from apportion.pools.schemas import (
    PoolClass,
    PoolCreate,
    QuotaResource,
    Sharing,
    SiteKind,
)

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "pools.md").read_text("utf-8")
SOURCE = Path(__file__).parents[2] / "src" / "apportion" / "pools"


def rows(heading):
    """Give the cells of each row of the first table below a heading, without its head."""
    section = TEXT.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    table = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    lines = table[0].splitlines()[2:]
    return [
        [cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in lines
    ]


def test_every_kind_of_site_is_documented():
    assert [row[0] for row in rows("Sites")] == list(get_args(SiteKind))


def test_every_class_is_documented_with_its_target_and_its_agent():
    documented = {cls: (target, agent) for cls, target, _, agent in rows("Classes")}
    agents = {
        cls: agent_of(PoolCreate.model_validate({"name": "n", "class": cls, "gpu_model": "H100"}))
        for cls in get_args(PoolClass)
    }
    assert documented == {cls: (TARGETS[cls], agents[cls]) for cls in get_args(PoolClass)}


def test_every_sharing_mode_is_documented_with_whether_it_is_offered():
    documented = {mode: offered.startswith("yes") for mode, _, offered in rows("Sharing")}
    assert documented == {mode: mode in ("exclusive", "mig") for mode in get_args(Sharing)}


def test_every_resource_of_quotas_is_documented():
    assert [row[0] for row in rows("Quotas")] == list(get_args(QuotaResource))


def test_every_operation_on_pools_is_documented_with_its_right():
    documented = {operation: right for operation, right, *_ in rows("Operations")}
    families = ("compute:pools:", "compute:quotas:")
    # Those of other rooms, on what lies in pools, stand in the pages of theirs.
    elsewhere = {
        "explain_quota",
        "defragment_pool",
        "get_pool_capacity",
        "get_gpu_calendar",
        *(operation for operation in RIGHTS if operation.endswith(("_layout", "_layouts"))),
    }
    expected = {
        operation: right
        for operation, right in RIGHTS.items()
        if right.startswith(families) and operation not in elsewhere
    }
    assert documented == expected


def test_every_event_of_the_operations_is_written_by_this_room():
    documented = {row[4] for row in rows("Operations")} - {"nothing"}
    written = {
        found
        for path in SOURCE.glob("*.py")
        for found in re.findall(r'Event\(\s*"((?:pool|quota)\.[a-z]+)"', path.read_text("utf-8"))
    }
    assert documented == written


def test_the_default_of_the_owners_quota_is_the_documents():
    request = PoolCreate.model_validate({"name": "n", "gpu_model": "H100"})
    assert request.owner_quota == {"gpu": 2147483647}
    assert '`{"gpu": 2147483647}`' in TEXT
