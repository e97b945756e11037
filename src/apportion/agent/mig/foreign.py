"""MIG instances that the agent did not make: an operator can look at them, and destroy them.

The agent leaves them alone for ever: whoever made them may need them.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from apportion.agent.mig.journal import Journal
from apportion.agent.mig.seen import Gpu, Hold, Instance, look_at_all
from apportion.agent.nvml import Driver
from apportion.errors import InvalidStateError, NotFoundError


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """An instance that is not ours.

    ``name`` is the UUID of its device, or GPU and id where it has none, or several.
    """

    name: str
    gpu: str
    instance: Instance


def foreign_instances(driver: Driver, journal: Journal) -> Iterator[Foreign]:
    """Give all of the machine's; DriverError where the driver does not say how many GPUs it has."""
    for gpu, instance in _instances(driver):
        if not _is_ours(journal, gpu, instance):
            yield Foreign(name=_name(gpu, instance), gpu=gpu.uuid, instance=instance)


def destroy(driver: Driver, journal: Journal, holds: Collection[Hold], name: str) -> Foreign:
    """Destroy one; nobody else may be at work with the journal or the GPU's devices.

    Raises NotFoundError where none is called so, InvalidStateError for one of ours, and for one
    that is used or handed out. DriverError where the driver refuses.
    """
    found = [each for each in _instances(driver) if _name(*each) == name]
    if not found:
        raise NotFoundError("no such instance", field="NAME", given=name)
    [(gpu, instance)] = found
    _check(journal, holds, gpu, instance)
    for compute in instance.computes:
        driver.destroy_compute(gpu.uuid, instance.gi_id, compute.ci_id)
    driver.destroy_instance(gpu.uuid, instance.gi_id)
    return Foreign(name=name, gpu=gpu.uuid, instance=instance)


def _check(journal: Journal, holds: Collection[Hold], gpu: Gpu, instance: Instance) -> None:
    name, why = _name(gpu, instance), None
    if _is_ours(journal, gpu, instance):
        why = "the agent made it, and destroys it when nobody is to have it"
    elif any(hold.gpu == gpu.uuid and hold.start in {None, instance.place.start} for hold in holds):
        why = "somebody has it: it is handed out on this node"
    elif instance.pids:
        why = f"processes use it: {', '.join(map(str, instance.pids))}"
    if why is not None:
        raise InvalidStateError(why, field="NAME", given=name)


def _instances(driver: Driver) -> Iterator[tuple[Gpu, Instance]]:
    return ((gpu, instance) for gpu in look_at_all(driver) for instance in gpu.instances)


def _is_ours(journal: Journal, gpu: Gpu, instance: Instance) -> bool:
    return any(entry.is_of(instance) for entry in journal.entries(gpu.uuid))


def _name(gpu: Gpu, instance: Instance) -> str:
    if len(instance.computes) == 1:
        return instance.computes[0].uuid
    return f"{gpu.uuid}/gi{instance.gi_id}"
