"""Listening for critical errors."""

import ctypes
from collections.abc import Iterable
from typing import Any

from apportion.agent.nvml.answers import DriverError, Event
from apportion.agent.nvml.calls import ask, binding, given, optional


class Watch:
    """Listens for critical errors, from its making on."""

    def __init__(self, gpus: Iterable[tuple[str, Any]]) -> None:
        """Register with GPUs, each a UUID and a handle, as far as they can tell."""
        self._set: Any = ask("nvmlEventSetCreate")
        # A GPU that has fallen off the bus tells of it, and says nothing more: not its name either.
        self._names: dict[int | None, str] = {}
        for uuid, handle in gpus:
            self._names[_address(handle)] = uuid
            kind = binding.nvmlEventTypeXidCriticalError
            optional("nvmlDeviceRegisterEvents", handle, kind, self._set)

    def next(self, milliseconds: int = 0) -> Event | None:
        """Return the next error, waiting so long for one; None where none came."""
        try:
            data = ask("nvmlEventSetWait", self._set, milliseconds)
        except DriverError as error:
            if error.reason == "timeout":
                return None
            raise
        name = self._names.get(_address(data.device))
        return Event(
            gpu=name or ask("nvmlDeviceGetUUID", data.device),
            xid=data.eventData,
            gi_id=given(data.gpuInstanceId),
            ci_id=given(data.computeInstanceId),
        )

    def close(self) -> None:
        """Listen no more; once is enough."""
        if self._set is not None:
            ask("nvmlEventSetFree", self._set)
            self._set = None


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
