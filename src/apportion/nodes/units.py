"""The units of a node's spec: what each part of it is to be, as of now: pure.

A unit that is not there asks for nothing: what it is about stays as it is found.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from fractions import Fraction
from typing import Any, Final

from apportion.nodes.cuts import Cut, cut_in_force, takes_cut
from apportion.nodes.devices import DEVICES_UNIT, Assigned, as_asked
from apportion.nodes.host_units import Units, host_units
from apportion.pools.policy import DYNAMIC, PoolPolicy, mps_units
from apportion.pools.service import PoolRecord

MIG_UNIT: Final = "mig-layout"
SHARING_UNIT: Final = "gpu-sharing"


def units_of(
    pool: PoolRecord, node: Mapping[str, Any], gpus: Sequence[str], assigned: Sequence[Assigned]
) -> Units:
    """Return what each unit of a node is to be; ``gpus`` are the UUIDs of those that it has."""
    units = _cut(pool, node, gpus, assigned)
    if pool.agent != "none" and node["agent"] is not None:
        asked = [as_asked(each) for each in assigned]
        units[DEVICES_UNIT] = {"assignments": asked, "release": release_of(pool.policy)}
        units |= host_units(pool.policy)
    return units


def release_of(policy: PoolPolicy) -> dict[str, Any]:
    """Say how devices of a pool are taken back when they are withdrawn."""
    return {
        "grace_seconds": policy.end_grace // timedelta(seconds=1),
        "reset": policy.reset_on_release,
    }


def _cut(
    pool: PoolRecord, node: Mapping[str, Any], gpus: Sequence[str], assigned: Sequence[Assigned]
) -> Units:
    cut = cut_in_force(pool, node)
    if "migLayout" in cut and takes_cut(pool, node):
        wanted = {"layout": cut["migLayout"], "mode_change": pool.policy.mode_change}
        if cut["migLayout"] == DYNAMIC:
            wanted["gpus"] = [_on_demand(gpu, assigned) for gpu in gpus]
        return {MIG_UNIT: wanted}
    if "replicas" in cut or "shares" in cut:
        return {SHARING_UNIT: {"mode": pool.sharing, **cut, **_shared(pool, cut, assigned)}}
    return {}


def _shared(pool: PoolRecord, cut: Cut, assigned: Sequence[Assigned]) -> dict[str, Any]:
    """Say how the parts of a shared GPU are told apart, as far as its mode can."""
    if pool.sharing == "timeslice":
        length = pool.policy.time_slice
        return {} if length is None else {"time_slice": length}
    widest: dict[str, Fraction] = {}
    for each in assigned:
        widest[each.gpu] = max(each.share, widest.get(each.gpu, each.share))
    units = {"mps_units": mps_units(cut["replicas"])} if "replicas" in cut else {}
    return {**units, "widest": {gpu: str(share) for gpu, share in widest.items()}}


def _on_demand(gpu: str, assigned: Sequence[Assigned]) -> dict[str, Any]:
    """Say what one GPU is to have now. Its MIG mode is nobody's concern while nobody has it."""
    here = [each for each in assigned if each.gpu == gpu]
    instances = [
        {"allocation_id": each.allocation_id, "profile": each.profile, "start": each.start}
        for each in here
        if each.cls == "gpu.mig"
    ]
    return {"gpu": gpu, "mig": bool(instances) if here else None, "instances": instances}
