"""Where the pieces of an ask are to lie: what cannot be so anywhere, or not in a pool, is refused.

What merely finds no room waits; what no room could ever meet would wait in vain.
"""

from collections.abc import Mapping
from typing import Any

from apportion.errors import InvalidInputError
from apportion.placement import Ask
from apportion.pools.service import PoolRecord
from apportion.reservations.schemas import GangSpec, PlacementSpec, ReservationAsk
from apportion.solving import check_installed


def check_arrangement(ask: Ask) -> None:
    """Refuse conditions that contradict each other; InvalidInputError names the field."""
    if not ask.devices and (ask.together != "node" or ask.apart):
        raise InvalidInputError(
            "means something only for devices: host resources are one node's",
            field="placement.apart" if ask.apart else "placement.together",
            given=ask.apart or ask.together,
            allowed="devices beside it",
        )
    if ask.together != "gpu":
        return
    if ask.apart:
        raise InvalidInputError(
            "pieces cannot lie on one GPU and each on a GPU of its own",
            field="placement.apart",
            given=True,
            allowed="false beside together: gpu",
        )
    pieces = sum(device.count for device in ask.devices)
    for at, device in enumerate(ask.devices):
        if device.cls == "gpu" and pieces > 1:
            raise InvalidInputError(
                "nothing else lies on a GPU that is taken whole",
                field="placement.together",
                given="gpu",
                allowed="node, numa or nvlink for whole GPUs",
            )
        if device.cls == "gpu.share" and device.count > 1:
            raise InvalidInputError(
                "pieces of gpu.share lie on GPUs of their own",
                field=f"devices[{at}].count",
                given=device.count,
                allowed="1 beside together: gpu; more of one GPU is more units",
            )


def check_fits_gpu(ask: Ask, pool: PoolRecord) -> None:
    """Refuse pieces that are to lie on one GPU and are more than a GPU of the pool has."""
    if ask.together != "gpu":
        return
    for cls, ruler in (("gpu.slot", pool.policy.replicas), ("gpu.share", pool.policy.shares)):
        asked = sum(each.count * each.units for each in ask.devices if each.cls == cls)
        if asked > (ruler or 0):
            what = "slots" if cls == "gpu.slot" else "hundredths"
            raise InvalidInputError(
                f"{asked} {what} are more than one GPU of the pool has",
                field="placement.together",
                given="gpu",
                allowed=f"at most {ruler} in all",
            )


def check_exact(request: ReservationAsk) -> None:
    """Refuse to plan exactly what can only be placed by itself."""
    if request.placement.policy != "exact":
        return
    check_installed(field="placement.policy")
    several = request.pool_ids is not None and len(request.pool_ids) > 1
    if several or request.gang is not None or request.end_before is not None:
        raise InvalidInputError(
            "plans batches of asks of one pool and window: no gang, no end_before",
            field="placement.policy",
            given="exact",
            allowed="first, best, spread or fragmentation for this one",
        )


def stored_placement(request: ReservationAsk) -> dict[str, Any]:
    """Write where a request's pieces and members are to lie as it is kept: what it says of it."""
    said = request.placement.model_dump(exclude_defaults=True)
    apart = request.gang is not None and request.gang.apart
    return {**said, "members_apart": True} if apart else said


def show_placement(row: Mapping[str, Any]) -> PlacementSpec:
    """Return where the pieces of a stored reservation are to lie."""
    kept = {key: value for key, value in row["placement"].items() if key != "members_apart"}
    return PlacementSpec.model_validate(kept)


def show_gang(row: Mapping[str, Any]) -> GangSpec | None:
    """Return a stored reservation's gang; None where it has but one member."""
    if row["members"] == 1:
        return None
    apart = row["placement"].get("members_apart", False)
    return GangSpec(members=row["members"], apart=apart)


def check_movable(pool: PoolRecord, *, movable: bool) -> None:
    """Refuse to be moved while it runs in a pool that does not permit that."""
    if movable and not pool.policy.preemptible:
        raise InvalidInputError(
            f"what runs in {pool.name} is not moved",
            field="placement.movable",
            given=True,
            allowed="true in pools whose policy sets preemptible",
        )
