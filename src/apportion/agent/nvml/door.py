"""The driver, as the agent uses it."""

import ctypes
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Literal

from apportion.agent.nvml.answers import (
    REASONS,
    ComputeInstance,
    DriverError,
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
from apportion.agent.nvml.calls import ask, binding, field_value, given, optional
from apportion.agent.nvml.instances import (
    compute_profiles,
    read_compute,
    read_instance,
    read_profiles,
)
from apportion.agent.nvml.listening import Watch

_MIB: Final = 1 << 20
_FIELD_RESETLESS: Final = 184
_FIELD_RECOVERY: Final = 230
_RECOVERIES: Final = ("none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset")
_LINKS_MAX: Final = 36
_REMOTE: Final[dict[int, Literal["gpu", "switch"]]] = {0: "gpu", 2: "switch"}


@contextmanager
def open_driver() -> "Generator[Driver]":
    """Begin to use the driver, and end it; DriverError where there is none."""
    ask("nvmlInit")
    try:
        yield Driver()
    finally:
        with suppress(DriverError):
            ask("nvmlShutdown")


class Driver:
    """The driver of this machine. What cannot change while it runs is asked for once."""

    def __init__(self) -> None:
        """Use a driver that is open."""
        self._handles: dict[str, Any] = {}
        self._profiles: dict[str, tuple[Profile, ...]] = {}

    def versions(self) -> Versions:
        """Return the versions of what answers."""
        cuda = int(ask("nvmlSystemGetCudaDriverVersion"))
        return Versions(
            driver=ask("nvmlSystemGetDriverVersion"),
            cuda=f"{cuda // 1000}.{cuda % 1000 // 10}",
            nvml=ask("nvmlSystemGetNVMLVersion"),
        )

    def gpu_count(self) -> int:
        """Return how many GPUs there are, lost ones too."""
        return int(ask("nvmlDeviceGetCount"))

    def uuid(self, index: int) -> str:
        """Return the name of a GPU, by which all else is asked."""
        handle = ask("nvmlDeviceGetHandleByIndex", index)
        uuid: str = ask("nvmlDeviceGetUUID", handle)
        self._handles[uuid] = handle
        return uuid

    def facts(self, gpu: str) -> GpuFacts:
        """Return what a GPU is."""
        handle = self._handle(gpu)
        pci = ask("nvmlDeviceGetPciInfo", handle)
        return GpuFacts(
            index=ask("nvmlDeviceGetIndex", handle),
            uuid=gpu,
            product=ask("nvmlDeviceGetName", handle),
            memory_mib=int(ask("nvmlDeviceGetMemoryInfo", handle).total) // _MIB,
            pci_address=pci.busId,
            pci_device_id=f"0x{pci.pciDeviceId >> 16:04X}",
            minor=ask("nvmlDeviceGetMinorNumber", handle),
        )

    def numa_node(self, gpu: str) -> int | None:
        """Return the NUMA node that is nearest to a GPU; None where the driver cannot tell."""
        mask = optional("nvmlDeviceGetMemoryAffinity", self._handle(gpu), 1, 0)
        return None if not mask or not mask[0] else (mask[0] & -mask[0]).bit_length() - 1

    def memory(self, device: str) -> Memory:
        """Return the memory of a GPU or of a MIG device, by its UUID."""
        handle = self._handle(device)
        found = ask("nvmlDeviceGetMemoryInfo", handle, binding.nvmlMemory_v2)
        return Memory(
            total_mib=found.total // _MIB,
            reserved_mib=found.reserved // _MIB,
            used_mib=found.used // _MIB,
        )

    def memory_health(self, gpu: str) -> MemoryHealth:
        """Return how a GPU's memory is."""
        handle = self._handle(gpu)
        mode = self.ecc_mode(gpu)
        rows = optional("nvmlDeviceGetRemappedRows", handle)
        return MemoryHealth(
            ecc=bool(mode and mode[0]),
            corrected=optional("nvmlDeviceGetTotalEccErrors", handle, 0, 0),
            uncorrected=optional("nvmlDeviceGetTotalEccErrors", handle, 1, 0),
            retirement_pending=bool(optional("nvmlDeviceGetRetiredPagesPendingStatus", handle))
            or bool(rows and rows[2]),
            remap_failed=bool(rows and rows[3]),
        )

    def ecc_mode(self, gpu: str) -> tuple[bool, bool] | None:
        """Return whether memory corrects errors now, and after the next reset; None: it cannot."""
        modes = optional("nvmlDeviceGetEccMode", self._handle(gpu))
        return None if modes is None else (bool(modes[0]), bool(modes[1]))

    def persistence_mode(self, gpu: str) -> bool | None:
        """Return whether the driver stays loaded where nobody uses the GPU; None: it cannot."""
        mode = optional("nvmlDeviceGetPersistenceMode", self._handle(gpu))
        return None if mode is None else bool(mode)

    def power_limit_milliwatts(self, gpu: str) -> int | None:
        """Return the power limit that is set for a GPU; None where it has none."""
        limit = optional("nvmlDeviceGetPowerManagementLimit", self._handle(gpu))
        return None if limit is None else int(limit)

    def recovery(self, gpu: str) -> str | None:
        """Return what a GPU has to go through before it can be used, such as ``gpu_reset``.

        ``none`` where nothing is wrong, None where the driver is too old to say.
        """
        action = field_value(self._handle(gpu), _FIELD_RECOVERY)
        if action is None:
            return None
        return _RECOVERIES[action] if action < len(_RECOVERIES) else f"recovery_{action}"

    def links(self, gpu: str) -> tuple[Link, ...]:
        """Return the NVLinks of a GPU, those that are down too; in MIG mode all are."""
        return tuple(self._links(self._handle(gpu)))

    def _links(self, handle: Any) -> Iterator[Link]:
        for number in range(_LINKS_MAX):
            up = optional("nvmlDeviceGetNvLinkState", handle, number)
            if up is None:
                return
            kind = optional("nvmlDeviceGetNvLinkRemoteDeviceType", handle, number)
            pci = optional("nvmlDeviceGetNvLinkRemotePciInfo", handle, number)
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
            for row in optional(name, handle) or ()
        ]
        return tuple(
            Process(
                pid=row.pid,
                gi_id=given(row.gpuInstanceId),
                ci_id=given(row.computeInstanceId),
                mps=mps,
                used_mib=None if row.usedGpuMemory is None else row.usedGpuMemory // _MIB,
            )
            for row, mps in sorted(found, key=lambda each: each[0].pid)
        )

    def compute_mode(self, device: str) -> int:
        """Return a device's compute mode by NVML's number: 0 shared, 2 nobody, 3 one process."""
        return int(ask("nvmlDeviceGetComputeMode", self._handle(device)))

    def set_compute_mode(self, device: str, mode: int) -> None:
        """Set a device's compute mode; 3 is not there in MIG mode."""
        ask("nvmlDeviceSetComputeMode", self._handle(device), mode)

    def mig_mode(self, gpu: str) -> MigMode | None:
        """Return the MIG mode of a GPU; None where MIG cannot split it."""
        handle = self._handle(gpu)
        modes = optional("nvmlDeviceGetMigMode", handle)
        if modes is None:
            return None
        return MigMode(
            current=bool(modes[0]),
            pending=bool(modes[1]),
            needs_reset=not field_value(handle, _FIELD_RESETLESS),
        )

    def set_mig_mode(self, gpu: str, *, on: bool) -> None:
        """Ask for MIG mode on or off.

        DriverError ``reset_required`` or ``in_use`` where it is only pending afterwards.
        """
        activation = int(ask("nvmlDeviceSetMigMode", self._handle(gpu), int(on)))
        self._forget(gpu)
        if activation != binding.NVML_SUCCESS:
            reason = REASONS.get(activation, "driver_error")
            raise DriverError(reason, f"the MIG mode is pending: {reason} ({activation})")

    def profiles(self, gpu: str) -> tuple[Profile, ...]:
        """Return the profiles that this driver has for a GPU.

        None of them on boards that can be asked in MIG mode only, and are not in it.
        """
        if gpu not in self._profiles:
            found = tuple(read_profiles(self._handle(gpu)))
            if not found:
                return ()
            self._profiles[gpu] = found
        return self._profiles[gpu]

    def instances(self, gpu: str) -> tuple[GpuInstance, ...]:
        """Return the GPU instances of a GPU in the order of their places; none outside MIG mode."""
        handle = self._handle(gpu)
        found: list[GpuInstance] = []
        for profile in self.profiles(gpu):
            rows = (binding.c_nvmlGpuInstance_t * max(1, profile.max_instances))()
            count = ctypes.c_uint()
            arguments = (handle, profile.id, rows, ctypes.byref(count))
            if optional("nvmlDeviceGetGpuInstances", *arguments) is not None:
                found += [read_instance(row) for row in rows[: count.value]]
        return tuple(sorted(found, key=lambda each: each.place))

    def create_instance(self, gpu: str, profile_id: int, place: Place) -> int:
        """Make a GPU instance at a place; returns its id, which may have been another's before."""
        at = binding.c_nvmlGpuInstancePlacement_t(place.start, place.size)
        made = ask(
            "nvmlDeviceCreateGpuInstanceWithPlacement",
            self._handle(gpu),
            profile_id,
            ctypes.byref(at),
        )
        return int(ask("nvmlGpuInstanceGetInfo", made).id)

    def fill_instance(self, gpu: str, gi_id: int) -> ComputeInstance:
        """Make the compute instance that has all of a GPU instance."""
        instance = self._instance_handle(gpu, gi_id)
        widest = max(compute_profiles(instance), key=lambda info: info.sliceCount)
        made = ask("nvmlGpuInstanceCreateComputeInstance", instance, widest.id)
        return read_compute(made)

    def destroy_compute(self, gpu: str, gi_id: int, ci_id: int) -> None:
        """Destroy a compute instance; one that is gone already is no error."""
        with _gone_is_fine():
            instance = self._instance_handle(gpu, gi_id)
            found = ask("nvmlGpuInstanceGetComputeInstanceById", instance, ci_id)
            ask("nvmlComputeInstanceDestroy", found)

    def destroy_instance(self, gpu: str, gi_id: int) -> None:
        """Destroy a GPU instance; one that is gone already is no error."""
        with _gone_is_fine():
            ask("nvmlGpuInstanceDestroy", self._instance_handle(gpu, gi_id))

    def watch(self) -> "Watch":
        """Begin to listen for critical errors of all GPUs that answer."""
        return Watch(self._handles_now())

    def _handles_now(self) -> Iterator[tuple[str, Any]]:
        for index in range(self.gpu_count()):
            with suppress(DriverError):
                uuid = self.uuid(index)
                yield uuid, self._handles[uuid]

    def _handle(self, device: str) -> Any:
        """Return a device's handle; a MIG device's is asked for anew, because it may be gone."""
        if device not in self._handles:
            handle = ask("nvmlDeviceGetHandleByUUID", device)
            if device.startswith("MIG-"):
                return handle
            self._handles[device] = handle
        return self._handles[device]

    def _forget(self, gpu: str) -> None:
        """Take a GPU's handle and profiles anew when next asked: a change of mode changes them."""
        self._handles.pop(gpu, None)
        self._profiles.pop(gpu, None)

    def _instance_handle(self, gpu: str, gi_id: int) -> Any:
        return ask("nvmlDeviceGetGpuInstanceById", self._handle(gpu), gi_id)


@contextmanager
def _gone_is_fine() -> Generator[None]:
    """Count an instance that is not there as destroyed, also where MIG mode itself is off."""
    try:
        yield
    except DriverError as error:
        if error.reason not in {"not_found", "not_supported"}:
            raise
