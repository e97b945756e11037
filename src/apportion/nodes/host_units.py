"""The units of a host beside its GPUs, from its pool's policy: pure.

Those that are applied have to be done before a new node takes work. Those that are compared have
not: nobody on the node can change what they are about, and a node that waited for it would wait for
ever. What differs is told instead.
"""

from collections.abc import Mapping
from typing import Any, Final

from apportion.pools.policy import PoolPolicy

COMPARED: Final = frozenset({"cpu", "iommu", "gpu", "kubernetes"})
APPLIED: Final = frozenset({"hugepages", "kernelModules"})
HOST_UNITS: Final = APPLIED | COMPARED

Units = dict[str, dict[str, Any]]


def host_units(policy: PoolPolicy) -> Units:
    """Return what a policy says of hosts, unit by unit, in its own words; what it leaves out stays.

    Sizes of huge pages come together: a size that is not named has none.
    """
    units: Units = {}
    if policy.pages is not None:
        units["hugepages"] = dict(policy.pages)
    if policy.kernel_modules:
        units["kernelModules"] = {"modules": list(dict.fromkeys(policy.kernel_modules))}
    if policy.iommu is not None:
        units["iommu"] = {"mode": policy.iommu}
    for name in ("cpu", "gpu", "kubernetes"):
        section = getattr(policy, name).model_dump(mode="json", by_alias=True)
        fields = {key: value for key, value in section.items() if value not in (None, {}, [])}
        if fields:
            units[name] = fields
    return units


def differing(outcomes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outcomes of the units of a host that are not done."""
    return {
        name: outcome
        for name, outcome in outcomes.items()
        if name in HOST_UNITS and not outcome["done"]
    }
