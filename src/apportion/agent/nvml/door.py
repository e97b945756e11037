"""The calls themselves: the one module that knows the binding and its structures."""

import ctypes
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, Final, Literal

from apportion.agent.nvml.answers import (
    REASONS,
    ComputeInstance,
    DriverError,
    Engines,
    Event,
    GpuFacts,
    GpuInstance,
    Link,
    Memory,
    MemoryHealth,
    MigMode,
    Place,
    Process,
    Profile,
    Versions,
)

# The binding has no types.
_nvml: Any = import_module("pynvml")

_MIB: Final = 1 << 20
_NONE: Final = 0xFFFFFFFF
_OLD_NONE: Final = 0xFFFFFFFFFFFFFFFF
_FIELD_RESETLESS: Final = 184
_LINKS_MAX: Final = 36
_REMOTE: Final[dict[int, Literal["gpu", "switch"]]] = {0: "gpu", 2: "switch"}
_ABSENT: Final = frozenset({"not_supported", "not_found", "function_not_found"})


def _ask(name: str, *arguments: Any) -> Any:
    """Make one call of the binding."""
    try:
        return getattr(_nvml, name)(*arguments)
    except _nvml.NVMLError as error:
        number = int(error.value)
        reason = REASONS.get(number, "driver_error")
        raise DriverError(reason, f"{name}: {error} ({number})") from error


def _optional(name: str, *arguments: Any) -> Any:
    """Make a call that not every board and driver has: None where it is not there."""
    try:
        return _ask(name, *arguments)
    except DriverError as error:
        if error.reason in _ABSENT:
            return None
        raise


def _given(value: int) -> int | None:
    return None if value in {_NONE, _OLD_NONE} else value


@contextmanager
def open_driver() -> "Generator[Driver]":
    """Begin to use the driver, and end it; DriverError where there is none."""
    _ask("nvmlInit")
    try:
        yield Driver()
    finally:
        with suppress(DriverError):
            _ask("nvmlShutdown")


class Driver:
    """The driver of this machine. What cannot change while it runs is asked for once."""

    def __init__(self) -> None:
        """Use a driver that is open."""
        self._handles: dict[str, Any] = {}
        self._profiles: dict[str, tuple[Profile, ...]] = {}

    def versions(self) -> Versions:
        """Return the versions of what answers."""
        cuda = int(_ask("nvmlSystemGetCudaDriverVersion"))
        return Versions(
            driver=_ask("nvmlSystemGetDriverVersion"),
            cuda=f"{cuda // 1000}.{cuda % 1000 // 10}",
            nvml=_ask("nvmlSystemGetNVMLVersion"),
        )

    def gpu_count(self) -> int:
        """Return how many GPUs there are, lost ones too."""
        return int(_ask("nvmlDeviceGetCount"))

    def uuid(self, index: int) -> str:
        """Return the name of a GPU, by which all else is asked."""
        handle = _ask("nvmlDeviceGetHandleByIndex", index)
        uuid: str = _ask("nvmlDeviceGetUUID", handle)
        self._handles[uuid] = handle
        return uuid

    def facts(self, gpu: str) -> GpuFacts:
        """Return what a GPU is."""
        handle = self._handle(gpu)
        pci = _ask("nvmlDeviceGetPciInfo", handle)
        return GpuFacts(
            index=_ask("nvmlDeviceGetIndex", handle),
            uuid=gpu,
            product=_ask("nvmlDeviceGetName", handle),
            memory_mib=int(_ask("nvmlDeviceGetMemoryInfo", handle).total) // _MIB,
            pci_address=pci.busId,
            pci_device_id=f"0x{pci.pciDeviceId >> 16:04X}",
            minor=_ask("nvmlDeviceGetMinorNumber", handle),
        )

    def numa_node(self, gpu: str) -> int | None:
        """Return the NUMA node that is nearest to a GPU; None where the driver cannot tell."""
        mask = _optional("nvmlDeviceGetMemoryAffinity", self._handle(gpu), 1, 0)
        return None if not mask or not mask[0] else (mask[0] & -mask[0]).bit_length() - 1

    def memory(self, device: str) -> Memory:
        """Return the memory of a GPU or of a MIG device, by its UUID."""
        handle = self._handle(device)
        found = _ask("nvmlDeviceGetMemoryInfo", handle, _nvml.nvmlMemory_v2)
        return Memory(
            total_mib=found.total // _MIB,
            reserved_mib=found.reserved // _MIB,
            used_mib=found.used // _MIB,
        )

    def memory_health(self, gpu: str) -> MemoryHealth:
        """Return how a GPU's memory is."""
        handle = self._handle(gpu)
        mode = _optional("nvmlDeviceGetEccMode", handle)
        rows = _optional("nvmlDeviceGetRemappedRows", handle)
        return MemoryHealth(
            ecc=bool(mode and mode[0]),
            corrected=_optional("nvmlDeviceGetTotalEccErrors", handle, 0, 0),
            uncorrected=_optional("nvmlDeviceGetTotalEccErrors", handle, 1, 0),
            retirement_pending=bool(_optional("nvmlDeviceGetRetiredPagesPendingStatus", handle))
            or bool(rows and rows[2]),
            remap_failed=bool(rows and rows[3]),
        )

    def links(self, gpu: str) -> tuple[Link, ...]:
        """Return the NVLinks of a GPU, those that are down too; in MIG mode all are."""
        return tuple(self._links(self._handle(gpu)))

    def _links(self, handle: Any) -> Iterator[Link]:
        for number in range(_LINKS_MAX):
            up = _optional("nvmlDeviceGetNvLinkState", handle, number)
            if up is None:
                return
            kind = _optional("nvmlDeviceGetNvLinkRemoteDeviceType", handle, number)
            pci = _optional("nvmlDeviceGetNvLinkRemotePciInfo", handle, number)
            yield Link(
                up=bool(up),
                remote=_REMOTE.get(-1 if kind is None else kind, "other"),
                address="" if pci is None else pci.busId,
            )

    def processes(self, device: str) -> tuple[Process, ...]:
        """Return who uses a GPU, with all its parts, or a MIG device."""
        handle = self._handle(device)
        found = [
            (row, mps)
            for name, mps in (
                ("nvmlDeviceGetComputeRunningProcesses", False),
                ("nvmlDeviceGetGraphicsRunningProcesses", False),
                ("nvmlDeviceGetMPSComputeRunningProcesses", True),
            )
            for row in _optional(name, handle) or ()
        ]
        return tuple(
            Process(
                pid=row.pid,
                gi_id=_given(row.gpuInstanceId),
                ci_id=_given(row.computeInstanceId),
                mps=mps,
                used_mib=None if row.usedGpuMemory is None else row.usedGpuMemory // _MIB,
            )
            for row, mps in sorted(found, key=lambda each: each[0].pid)
        )

    def compute_mode(self, device: str) -> int:
        """Return a device's compute mode by NVML's number: 0 shared, 2 nobody, 3 one process."""
        return int(_ask("nvmlDeviceGetComputeMode", self._handle(device)))

    def set_compute_mode(self, device: str, mode: int) -> None:
        """Set a device's compute mode; 3 is not there in MIG mode."""
        _ask("nvmlDeviceSetComputeMode", self._handle(device), mode)

    def mig_mode(self, gpu: str) -> MigMode | None:
        """Return the MIG mode of a GPU; None where MIG cannot split it."""
        handle = self._handle(gpu)
        modes = _optional("nvmlDeviceGetMigMode", handle)
        if modes is None:
            return None
        [resetless] = _ask("nvmlDeviceGetFieldValues", handle, [_FIELD_RESETLESS])
        known = resetless.nvmlReturn == _nvml.NVML_SUCCESS
        return MigMode(
            current=bool(modes[0]),
            pending=bool(modes[1]),
            needs_reset=not (known and resetless.value.uiVal),
        )

    def set_mig_mode(self, gpu: str, *, on: bool) -> None:
        """Ask for MIG mode on or off.

        DriverError ``reset_required`` or ``in_use`` where it is only pending afterwards.
        """
        activation = int(_ask("nvmlDeviceSetMigMode", self._handle(gpu), int(on)))
        self._forget(gpu)
        if activation != _nvml.NVML_SUCCESS:
            reason = REASONS.get(activation, "driver_error")
            raise DriverError(reason, f"the MIG mode is pending: {reason} ({activation})")

    def profiles(self, gpu: str) -> tuple[Profile, ...]:
        """Return the profiles that this driver has for a GPU.

        None of them on boards that can be asked in MIG mode only, and are not in it.
        """
        if gpu not in self._profiles:
            found = tuple(self._read_profiles(self._handle(gpu)))
            if not found:
                return ()
            self._profiles[gpu] = found
        return self._profiles[gpu]

    def _read_profiles(self, handle: Any) -> Iterator[Profile]:
        """Ask by every number until the driver knows no more: newer drivers have more of them."""
        number = -1
        while True:
            number += 1
            try:
                info = _optional("nvmlDeviceGetGpuInstanceProfileInfo", handle, number)
            except DriverError as error:
                if error.reason == "invalid_argument":
                    return
                raise
            if info is not None:
                yield _profile(handle, number, info)

    def instances(self, gpu: str) -> tuple[GpuInstance, ...]:
        """Return the GPU instances of a GPU in the order of their places; none outside MIG mode."""
        handle = self._handle(gpu)
        found: list[GpuInstance] = []
        for profile in self.profiles(gpu):
            rows = (_nvml.c_nvmlGpuInstance_t * max(1, profile.max_instances))()
            count = ctypes.c_uint()
            arguments = (handle, profile.id, rows, ctypes.byref(count))
            if _optional("nvmlDeviceGetGpuInstances", *arguments) is not None:
                found += [_instance(row) for row in rows[: count.value]]
        return tuple(sorted(found, key=lambda each: each.place))

    def create_instance(self, gpu: str, profile_id: int, place: Place) -> int:
        """Make a GPU instance at a place; returns its id, which may have been another's before."""
        at = _nvml.c_nvmlGpuInstancePlacement_t(place.start, place.size)
        made = _ask(
            "nvmlDeviceCreateGpuInstanceWithPlacement",
            self._handle(gpu),
            profile_id,
            ctypes.byref(at),
        )
        return int(_ask("nvmlGpuInstanceGetInfo", made).id)

    def fill_instance(self, gpu: str, gi_id: int) -> ComputeInstance:
        """Make the compute instance that has all of a GPU instance."""
        instance = self._instance_handle(gpu, gi_id)
        widest = max(_compute_profiles(instance), key=lambda info: info.sliceCount)
        made = _ask("nvmlGpuInstanceCreateComputeInstance", instance, widest.id)
        return _compute(made)

    def destroy_compute(self, gpu: str, gi_id: int, ci_id: int) -> None:
        """Destroy a compute instance; one that is gone already is no error."""
        with _gone_is_fine():
            instance = self._instance_handle(gpu, gi_id)
            found = _ask("nvmlGpuInstanceGetComputeInstanceById", instance, ci_id)
            _ask("nvmlComputeInstanceDestroy", found)

    def destroy_instance(self, gpu: str, gi_id: int) -> None:
        """Destroy a GPU instance; one that is gone already is no error."""
        with _gone_is_fine():
            _ask("nvmlGpuInstanceDestroy", self._instance_handle(gpu, gi_id))

    def watch(self) -> "Watch":
        """Begin to listen for critical errors of all GPUs that answer."""
        return Watch(self)

    def handles(self) -> Iterator[tuple[str, Any]]:
        """Give the GPUs that answer, each with its handle."""
        for index in range(self.gpu_count()):
            with suppress(DriverError):
                uuid = self.uuid(index)
                yield uuid, self._handles[uuid]

    def _handle(self, device: str) -> Any:
        """Return a device's handle; a MIG device's is asked for anew, because it may be gone."""
        if device not in self._handles:
            handle = _ask("nvmlDeviceGetHandleByUUID", device)
            if device.startswith("MIG-"):
                return handle
            self._handles[device] = handle
        return self._handles[device]

    def _forget(self, gpu: str) -> None:
        """Take a GPU's handle and profiles anew when next asked: a change of mode changes them."""
        self._handles.pop(gpu, None)
        self._profiles.pop(gpu, None)

    def _instance_handle(self, gpu: str, gi_id: int) -> Any:
        return _ask("nvmlDeviceGetGpuInstanceById", self._handle(gpu), gi_id)


@contextmanager
def _gone_is_fine() -> Generator[None]:
    """Count an instance that is not there as destroyed, also where MIG mode itself is off."""
    try:
        yield
    except DriverError as error:
        if error.reason not in {"not_found", "not_supported"}:
            raise


def _profile(handle: Any, number: int, info: Any) -> Profile:
    return Profile(
        number=number,
        id=info.id,
        name=info.name.removeprefix("MIG "),
        compute_slices=info.sliceCount,
        max_instances=info.instanceCount,
        sm_count=info.multiprocessorCount,
        memory_mib=info.memorySizeMB,
        engines=Engines(
            info.copyEngineCount,
            info.decoderCount,
            info.encoderCount,
            info.jpegCount,
            info.ofaCount,
        ),
        places=_places(handle, info.id),
    )


def _places(handle: Any, profile_id: int) -> tuple[Place, ...]:
    name = "nvmlDeviceGetGpuInstancePossiblePlacements"
    count = ctypes.c_uint()
    _ask(name, handle, profile_id, None, ctypes.byref(count))
    rows = (_nvml.c_nvmlGpuInstancePlacement_t * max(1, count.value))()
    _ask(name, handle, profile_id, rows, ctypes.byref(count))
    return tuple(Place(row.start, row.size) for row in rows[: count.value])


def _instance(handle: Any) -> GpuInstance:
    info = _ask("nvmlGpuInstanceGetInfo", handle)
    return GpuInstance(
        gi_id=info.id,
        profile_id=info.profileId,
        place=Place(info.placement.start, info.placement.size),
        computes=tuple(sorted(_computes(handle), key=lambda each: each.ci_id)),
    )


def _compute_profiles(instance: Any) -> Iterator[Any]:
    for number in range(_nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        info = _optional("nvmlGpuInstanceGetComputeInstanceProfileInfo", instance, number, 0)
        if info is not None:
            yield info


def _computes(instance: Any) -> Iterator[ComputeInstance]:
    for info in _compute_profiles(instance):
        rows = (_nvml.c_nvmlComputeInstance_t * max(1, info.instanceCount))()
        count = ctypes.c_uint()
        _ask("nvmlGpuInstanceGetComputeInstances", instance, info.id, rows, ctypes.byref(count))
        for row in rows[: count.value]:
            yield _compute(row)


def _compute(handle: Any) -> ComputeInstance:
    info = _ask("nvmlComputeInstanceGetInfo", handle)
    attributes = _ask("nvmlDeviceGetAttributes", info.device)
    name: str = _ask("nvmlDeviceGetName", info.device)
    return ComputeInstance(
        ci_id=info.id,
        uuid=_ask("nvmlDeviceGetUUID", info.device),
        profile=name.rpartition("MIG ")[2],
        compute_slices=attributes.computeInstanceSliceCount,
        sm_count=attributes.multiprocessorCount,
        memory_mib=attributes.memorySizeMB,
    )


class Watch:
    """Listens for critical errors, from its making on."""

    def __init__(self, driver: Driver) -> None:
        """Register with all GPUs that answer and can tell."""
        self._set: Any = _ask("nvmlEventSetCreate")
        # A GPU that has fallen off the bus tells of it, and says nothing more: not its name either.
        self._names: dict[int | None, str] = {}
        for uuid, handle in driver.handles():
            self._names[_address(handle)] = uuid
            kind = _nvml.nvmlEventTypeXidCriticalError
            _optional("nvmlDeviceRegisterEvents", handle, kind, self._set)

    def next(self, milliseconds: int = 0) -> Event | None:
        """Return the next error, waiting so long for one; None where none came."""
        try:
            data = _ask("nvmlEventSetWait", self._set, milliseconds)
        except DriverError as error:
            if error.reason == "timeout":
                return None
            raise
        return Event(
            gpu=self._names[_address(data.device)],
            xid=data.eventData,
            gi_id=_given(data.gpuInstanceId),
            ci_id=_given(data.computeInstanceId),
        )

    def close(self) -> None:
        """Listen no more; once is enough."""
        if self._set is not None:
            _ask("nvmlEventSetFree", self._set)
            self._set = None


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
