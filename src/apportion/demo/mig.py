"""A DGX H100 cut in several ways, and a few people on it."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

from apportion.geometry import board_by_key, parse_layout
from apportion.nodes.schemas import GpuReport, HostReport, Inventory, MigInstance, MigState, NvLink
from apportion.quantities.windows import format_instant
from apportion.reservations.schemas import ReservationCreate

POOL: Final = "h100-mig"
_BOARD: Final = "h100-sxm5-80gb"
_LAYOUTS: Final = (
    "mixed:3g.40gb+2x2g.20gb",
    "mixed:3g.40gb+2x2g.20gb",
    "mixed:4g.40gb+2g.20gb+1g.10gb",
    "all-1g.10gb",
    "all-3g.40gb",
    "all-balanced",
    "all-7g.80gb",
    "all-disabled",
)
# (name, profile or None for a whole GPU, hours from now, hours long)
_PEOPLE: Final = (
    ("notebook-ana", "3g.40gb", 0, 4),
    ("notebook-ben", "2g.20gb", 0, 8),
    ("inference-chat", "3g.40gb", 0, 72),
    ("inference-search", "2g.20gb", 0, 72),
    ("ci-smoke-1", "1g.10gb", 0, 1),
    ("ci-smoke-2", "1g.10gb", 0, 1),
    ("finetune-dora", "4g.40gb", 0, 12),
    ("class-of-30", "1g.10gb", 2, 3),
    ("train-eve", "7g.80gb", 0, 24),
    ("benchmark", None, 1, 2),
)


def node() -> Inventory:
    """Return the report of a machine with eight H100, each cut as `_LAYOUTS` says."""
    uuids = [f"GPU-{uuid5(NAMESPACE_URL, f'dgx-01/{index}')}" for index in range(len(_LAYOUTS))]
    return Inventory(
        node="dgx-01",
        host=HostReport(logical_cpus=224, memory_mib=2 * 1024 * 1024),
        gpus=[_gpu(index, layout, uuids) for index, layout in enumerate(_LAYOUTS)],
    )


def people(pool_id: str, now: datetime) -> list[ReservationCreate]:
    """Return their requests, as seen from ``now``; the same again on a second call is a retry."""
    return [
        ReservationCreate.model_validate(
            {
                "name": name,
                "pool_id": pool_id,
                "devices": [_device(profile)],
                "resources": {"vcpu": 8, "memoryGiB": 64},
                "duration": f"{length}h",
                "idempotency_key": f"demo/{name}",
                **({"start": format_instant(now + timedelta(hours=later))} if later else {}),
            }
        )
        for name, profile, later, length in _PEOPLE
    ]


def _device(profile: str | None) -> dict[str, Any]:
    if profile is None:
        return {"class": "gpu"}
    expression = {"key": "migProfile", "op": "In", "values": [profile]}
    return {"class": "gpu.mig", "selector": {"matchExpressions": [expression]}}


def _gpu(index: int, layout: str, uuids: Sequence[str]) -> GpuReport:
    cut = parse_layout(layout, board_by_key(_BOARD))
    instances = [
        MigInstance(
            gi_id=number,
            ci_id=0,
            uuid=f"MIG-{uuid5(NAMESPACE_URL, f'{uuids[index]}/{number}')}",
            profile=placement.profile,
            start=placement.start,
        )
        for number, placement in enumerate(cut.placements, 1)
    ]
    return GpuReport(
        index=index,
        uuid=uuids[index],
        product="NVIDIA H100 80GB HBM3",
        memory_mib=81559,
        pci_device_id="0x2330",
        pci_address=f"00000000:{0x1B + index * 0x10:02X}:00.0",
        numa_node=index // 4,
        mig=MigState(current=cut.mig_enabled, pending=cut.mig_enabled, instances=instances),
        nvlink=[NvLink(peer=peer, links=18) for peer in uuids if peer != uuids[index]],
    )
