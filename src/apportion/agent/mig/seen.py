"""What a driver shows of a node's GPUs as far as MIG goes, and the calls that change it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from apportion.geometry import Board


class DriverError(Exception):
    """The driver refused a call, for a reason that scripts can rely on.

    ``in_use``, ``insufficient_resources``, ``reset_required``, ``not_supported``,
    ``no_permission``, ``gpu_lost``, ``not_found``, or ``driver_error`` for all others.
    """

    def __init__(self, reason: str, message: str) -> None:
        """Say why, as a code and in the driver's words."""
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """A compute instance. ``uuid`` is its MIG device's, new whenever it is made again.

    ``fills`` tells that it has all SMs of its GPU instance.
    """

    id: int
    uuid: str
    fills: bool
    memory_mib: int
    sm_count: int
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A GPU instance: its place in memory slices, and the compute instances in it."""

    gi_id: int
    profile: str
    start: int
    size: int
    computes: tuple[Compute, ...] = ()

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that use any of it."""
        return tuple(pid for compute in self.computes for pid in compute.pids)

    @property
    def device(self) -> Compute | None:
        """The one compute instance that fills it, None where it has none or others."""
        if len(self.computes) == 1 and self.computes[0].fills:
            return self.computes[0]
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an instance of a profile may lie, in memory slices, and what it has to have there."""

    start: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU as its driver shows it.

    ``mig`` and ``pending`` are None where the GPU cannot do MIG. ``places`` are those of each
    profile, as this driver reports them. ``sm_counts`` and ``memory_mib`` are what an instance of
    each profile has to have. ``failed`` says why the GPU did not answer; all else is empty then.
    """

    uuid: str
    board: Board | None = None
    failed: str | None = None
    mig: bool | None = None
    pending: bool | None = None
    needs_reset: bool = False
    places: Mapping[str, Sequence[Place]] = field(default_factory=dict[str, Sequence[Place]])
    sm_counts: Mapping[str, int] = field(default_factory=dict[str, int])
    memory_mib: Mapping[str, int] = field(default_factory=dict[str, int])
    instances: tuple[Instance, ...] = ()
    pids: tuple[int, ...] = ()

    def place(self, profile: str, start: int) -> Place | None:
        """Return the place of a profile that begins there, None where it has none."""
        return next((each for each in self.places.get(profile, ()) if each.start == start), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Somebody has a device of this node: the instance that begins there, or the GPU (None)."""

    gpu: str
    start: int | None


class Driver(Protocol):
    """The driver's calls that MIG needs. All raise DriverError."""

    def gpus(self) -> Sequence[Gpu]:
        """Look at all GPUs."""
        ...

    def gpu(self, uuid: str) -> Gpu:
        """Look at one GPU."""
        ...

    def set_mode(self, gpu: str, *, on: bool) -> None:
        """Ask for MIG mode on or off; where that wants a reset it is only pending afterwards."""
        ...

    def reset(self, gpu: str) -> None:
        """Reset a GPU that nobody uses."""
        ...

    def create_instance(self, gpu: str, profile: str, place: Place) -> int:
        """Make a GPU instance there; returns its id, which may have been another's before."""
        ...

    def fill_instance(self, gpu: str, gi_id: int) -> str:
        """Make the compute instance that has all of a GPU instance; returns its device's UUID."""
        ...

    def destroy_compute(self, gpu: str, gi_id: int, ci_id: int) -> None:
        """Destroy a compute instance; one that is gone already is no error."""
        ...

    def destroy_instance(self, gpu: str, gi_id: int) -> None:
        """Destroy a GPU instance; one that is gone already is no error."""
        ...
