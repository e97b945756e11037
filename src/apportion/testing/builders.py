"""Short builders of what tests talk about: clocks, reports of nodes, pools, asks.

inventory("n1", gpu("H100", 0, "3g.40gb@4", "2g.20gb@0"), gpu("H100", 1))
pool_of("H100", "mig", maxPending="6h")
ask(pool.id, device("gpu.mig", profile="3g.40gb"), duration="1h", vcpu=4)
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from apportion.nodes.schemas import GpuReport, Inventory
from apportion.pools.schemas import PoolCreate
from apportion.quantities.windows import parse_instant
from apportion.reservations.schemas import DeviceRequest, ReservationCreate

KEY: Final = bytes(range(32))
"""A server's key for tests: pass it as a runtime's ``key``."""

MONDAY: Final = datetime(2026, 3, 2, 9, tzinfo=UTC)

# As NVML names them, with the memory in MiB that it reports.
_PRODUCTS: Final = {
    "A30": ("NVIDIA A30", 24576),
    "A100": ("NVIDIA A100-SXM4-40GB", 40960),
    "H100": ("NVIDIA H100 80GB HBM3", 81559),
    "T4": ("Tesla T4", 15360),
}
_EVERYTHING: Final = ("gpu", "gpu.mig", "gpu.slot", "gpu.share", "vcpu", "memoryGiB")


@dataclass(slots=True)
class Clock:
    """A clock that stands still until it is set: pass it as a runtime's ``now``."""

    now: datetime = field(default=MONDAY)

    def __call__(self) -> datetime:
        """Return the instant that it shows."""
        return self.now

    def advance(self, **by: int) -> None:
        """Move on, by ``hours=1`` or whatever else `timedelta` takes."""
        self.now += timedelta(**by)

    def set(self, text: str) -> None:
        """Set it to an RFC 3339 instant."""
        self.now = parse_instant(text, field="now")


def gpu(model: str, index: int, *instances: str, node: str = "n1", **report: Any) -> GpuReport:
    """Build the report of one GPU; with instances, such as ``3g.40gb@4``, its MIG mode is on.

    ``report`` sets further fields of the report: ``failed="Xid 79"``, ``numa_node=1``.
    """
    product, memory_mib = _PRODUCTS[model]
    uuid = f"GPU-{node}-{index}"
    given = {
        "index": index,
        "uuid": uuid,
        "product": product,
        "memory_mib": memory_mib,
        "mig": mig(uuid, *instances),
    }
    return GpuReport.model_validate({**given, **report})


def mig(uuid: str, *instances: str, pending: bool | None = None) -> dict[str, Any]:
    """Build a GPU's MIG state: on where there are instances, and about to be so if ``pending``."""
    on = bool(instances)
    return {
        "current": on,
        "pending": on if pending is None else pending,
        "instances": [
            {
                "gi_id": number,
                "ci_id": 0,
                "uuid": f"MIG-{uuid}-{number}",
                "profile": instance.partition("@")[0],
                "start": int(instance.partition("@")[2]),
            }
            for number, instance in enumerate(instances, 1)
        ],
    }


def inventory(
    node: str, *gpus: GpuReport, cpus: int = 64, memory_gib: int = 256, **document: Any
) -> Inventory:
    """Build the report of a node with this many logical CPUs and this much memory."""
    host = {"logical_cpus": cpus, "memory_mib": memory_gib * 1024}
    given = {"node": node, "host": host, "gpus": [each.model_dump(by_alias=True) for each in gpus]}
    return Inventory.model_validate({**given, **document})


def pool_of(
    model: str,
    sharing: str = "exclusive",
    *,
    name: str | None = None,
    quota: dict[str, int | str] | None = None,
    key: str | None = None,
    **policy: Any,
) -> PoolCreate:
    """Build a pool; every quota is unlimited unless ``quota`` gives the limits that there are."""
    unlimited = dict.fromkeys(_EVERYTHING, "unlimited")
    return PoolCreate.model_validate(
        {
            "name": name or f"{model}-{sharing}".casefold(),
            "gpu_model": model,
            "sharing": sharing,
            "owner_quota": unlimited if quota is None else quota,
            "policy": policy,
            "idempotency_key": key,
        }
    )


def device(
    cls: str = "gpu",
    count: int = 1,
    units: int = 1,
    *,
    profile: str | None = None,
    sharing: str | None = None,
    where: Sequence[tuple[str, str, Sequence[str | int]]] = (),
) -> DeviceRequest:
    """Build a device request; ``where`` holds (attribute, operator, values)."""
    conditions = [*where]
    if profile is not None:
        conditions.append(("migProfile", "In", [profile]))
    expressions = [{"key": key, "op": op, "values": [*values]} for key, op, values in conditions]
    return DeviceRequest.model_validate(
        {
            "class": cls,
            "count": count,
            "units": units,
            "sharing": sharing,
            "selector": {"matchExpressions": expressions},
        }
    )


def ask(
    pool: str | Sequence[str],
    *devices: DeviceRequest,
    duration: str | None = None,
    start: datetime | str | None = None,
    end: datetime | str | None = None,
    vcpu: int | str = 0,
    memory_gib: int | str = 0,
    key: str | None = None,
    **request: Any,
) -> ReservationCreate:
    """Build a reservation of one hour from now, or of the window given."""
    if duration is None and end is None and not request.get("open_ended"):
        duration = "1h"
    pools = {"pool_id": pool} if isinstance(pool, str) else {"pool_ids": [*pool]}
    given = {
        **pools,
        "devices": [each.model_dump(by_alias=True) for each in devices],
        "resources": {"vcpu": vcpu, "memoryGiB": memory_gib},
        "duration": duration,
        "start": start.isoformat() if isinstance(start, datetime) else start,
        "end": end.isoformat() if isinstance(end, datetime) else end,
        "idempotency_key": key,
    }
    return ReservationCreate.model_validate({**given, **request})
