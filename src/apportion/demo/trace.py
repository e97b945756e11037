"""The trace's nodes as inventories, its tasks as reservations.

The trace says of each task how many GPUs it wants and how many thousandths of each (always whole
hundredths), and its CPU and memory; so each GPU model is a pool of free shares, and a whole GPU
is 100 of them. A task names no model: every pool is a candidate, and its reservation names the
one it got.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Final
from uuid import NAMESPACE_URL, uuid5

from apportion.nodes.schemas import GpuReport, HostReport, Inventory
from apportion.reservations.schemas import DeviceRequest, HostResources, ReservationCreate

HOLD: Final = "30d"
"""How long each task keeps its place: the trace's own lifetimes would leave the fleet empty."""

LAST_TASK: Final = "openb-pod-8151"

_DATA: Final = files("apportion.demo") / "data"


def nodes_by_model() -> Mapping[str, Sequence[Inventory]]:
    """Return the trace's nodes by the model of their GPUs, in the order of the trace."""
    found: dict[str, list[Inventory]] = {}
    for row in _rows("openb_nodes.csv"):
        found.setdefault(row["model"], []).append(_node(row))
    return found


def tasks(pool_ids: Sequence[str]) -> Iterator[ReservationCreate]:
    """Yield the trace's tasks in order, each asking any of the pools."""
    for row in _rows("openb_tasks.csv"):
        count = int(row["num_gpu"])
        share = {"class": "gpu.share", "count": count, "units": int(row["gpu_milli"]) // 10}
        yield ReservationCreate(
            name=row["name"],
            pool_ids=list(pool_ids),
            devices=[DeviceRequest.model_validate(share)] if count else [],
            resources=HostResources.model_validate(
                {"vcpu": f"{row['cpu_milli']}m", "memoryGiB": f"{row['memory_mib']}/1024"}
            ),
            duration=HOLD,
            idempotency_key=row["name"],
        )


def _node(row: Mapping[str, str]) -> Inventory:
    name = row["sn"]
    return Inventory(
        node=name,
        host=HostReport(
            logical_cpus=int(row["cpu_milli"]) // 1000, memory_mib=int(row["memory_mib"])
        ),
        gpus=[
            GpuReport(
                index=index,
                uuid=f"GPU-{uuid5(NAMESPACE_URL, f'openb/{name}/{index}')}",
                product=row["model"],
            )
            for index in range(int(row["gpu"]))
        ],
    )


def _rows(name: str) -> Iterator[dict[str, str]]:
    yield from csv.DictReader((_DATA / name).read_text("utf-8").splitlines())
