"""Where the pieces of an ask are to lie: what cannot be so anywhere, or not in a pool, is refused.

What merely finds no room waits; what no room could ever meet would wait in vain.
"""

from apportion.errors import InvalidInputError
from apportion.placement import Ask
from apportion.pools.service import PoolRecord


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
