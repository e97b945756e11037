"""GPUs as far as MIG goes: one look at what the driver shows, to think about without it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from apportion.agent.nvml import (
    ComputeInstance,
    Driver,
    DriverError,
    GpuFacts,
    Place,
    Process,
    Profile,
)
from apportion.errors import InvalidInputError
from apportion.geometry import Board, find_board


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A GPU instance: its place in memory slices, what is in it, and which processes use it.

    ``device`` is the one compute instance that has all of it; None where there is none, or others.
    """

    gi_id: int
    profile: str
    place: Place
    computes: tuple[ComputeInstance, ...] = ()
    device: ComputeInstance | None = None
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU as its driver shows it.

    ``mig`` and ``pending`` are None where MIG cannot split it. ``profiles`` are those that this
    driver has, by name. ``failed`` says why it does not answer; nothing else is known of it then.
    """

    uuid: str
    failed: str | None = None
    board: Board | None = None
    mig: bool | None = None
    pending: bool | None = None
    needs_reset: bool = False
    profiles: Mapping[str, Profile] = field(default_factory=dict[str, Profile])
    instances: tuple[Instance, ...] = ()
    pids: tuple[int, ...] = ()

    def place(self, profile: str, start: int) -> Place | None:
        """Return the place of a profile that begins there, None where it has none."""
        found = self.profiles.get(profile)
        places = () if found is None else found.places
        return next((each for each in places if each.start == start), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Somebody has a device of this node: the instance that begins there, or the GPU (None)."""

    gpu: str
    start: int | None


def look_at_all(driver: Driver) -> Iterator[Gpu]:
    """Look at every GPU; one that does not even tell its name goes by its number."""
    for index in range(driver.gpu_count()):
        try:
            uuid = driver.uuid(index)
        except DriverError as error:
            yield Gpu(uuid=f"GPU {index}", failed=error.message)
        else:
            yield look_at(driver, uuid)


def look_at(driver: Driver, gpu: str) -> Gpu:
    """Look at one GPU."""
    try:
        return _look(driver, gpu)
    except DriverError as error:
        return Gpu(uuid=gpu, failed=error.message)


def _look(driver: Driver, gpu: str) -> Gpu:
    processes = driver.processes(gpu)
    pids = tuple(each.pid for each in processes)
    mode = driver.mig_mode(gpu)
    if mode is None:
        return Gpu(uuid=gpu, pids=pids)
    profiles = driver.profiles(gpu)
    return Gpu(
        uuid=gpu,
        board=_board(driver.facts(gpu)),
        mig=mode.current,
        pending=mode.pending,
        needs_reset=mode.needs_reset,
        profiles={each.name: each for each in profiles},
        instances=tuple(_instances(driver, gpu, profiles, processes)),
        pids=pids,
    )


def _instances(
    driver: Driver, gpu: str, profiles: Sequence[Profile], processes: Sequence[Process]
) -> Iterator[Instance]:
    by_id = {each.id: each for each in profiles}
    for found in driver.instances(gpu):
        profile = by_id[found.profile_id]
        computes = found.computes
        fills = len(computes) == 1 and computes[0].compute_slices == profile.compute_slices
        yield Instance(
            gi_id=found.gi_id,
            profile=profile.name,
            place=found.place,
            computes=computes,
            device=computes[0] if fills else None,
            pids=tuple(each.pid for each in processes if each.gi_id == found.gi_id),
        )


def _board(facts: GpuFacts) -> Board | None:
    try:
        return find_board(
            facts.product, memory_mib=facts.memory_mib, pci_device_id=facts.pci_device_id
        )
    except InvalidInputError:
        return None
