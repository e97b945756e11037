"""What a defragmentation frees is printed with the largest request that it makes room for."""

from datetime import UTC, datetime
from types import SimpleNamespace

from apportion.cli.defrag import summary_lines
from apportion.reservations.schemas import Defragmented


def largest(**of):
    nothing = {"largest_count": None, "largest_units": None, "largest_profile": None}
    return {**nothing, **of}


def test_beside_what_is_freed_stands_the_largest_that_fits_then_and_now():
    found = Defragmented.model_validate(
        {
            "pool_id": "pool_1",
            "moves": [],
            "fits": [],
            "does_not_fit": [],
            "freed_gpus": 3,
            "largest_from": datetime(2026, 3, 2, 9, tzinfo=UTC),
            "largest_now": [
                largest(**{"class": "gpu", "largest_count": 0}),
                largest(**{"class": "gpu.mig", "largest_profile": "3g.40gb"}),
            ],
            "largest_then": [
                largest(**{"class": "gpu", "largest_count": 2}),
                largest(**{"class": "gpu.mig", "largest_profile": "3g.40gb"}),
            ],
            "bound": 0,
            "optimal": True,
            "stale": None,
            "nodes_looked_at": 2,
            "nodes": 2,
            "applied": False,
        }
    )
    _, freed, since, *rest = summary_lines(found, SimpleNamespace(name="p"))
    assert freed == "  3 whole GPUs are free then"
    assert since.startswith("  largest requests with room for good from 2026-03-02")
    assert rest == ["    gpu: 2 on one node (now none)", "    gpu.mig: 3g.40gb (as now)"]
