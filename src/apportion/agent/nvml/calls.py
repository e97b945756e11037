"""The calls themselves: the one module that imports the binding."""

from importlib import import_module
from typing import Any, Final

from apportion.agent.nvml.answers import REASONS, DriverError

# The binding has no types.
binding: Any = import_module("pynvml")

_NONE: Final = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})
_ABSENT: Final = frozenset({"not_supported", "not_found", "function_not_found"})


def ask(name: str, *arguments: Any) -> Any:
    """Make one call of the binding; DriverError in the driver's words."""
    try:
        return getattr(binding, name)(*arguments)
    except binding.NVMLError as error:
        number = int(error.value)
        reason = REASONS.get(number, "driver_error")
        raise DriverError(reason, f"{name}: {error} ({number})") from error


def optional(name: str, *arguments: Any) -> Any:
    """Make a call that not every board and driver has: None where it is not there."""
    try:
        return ask(name, *arguments)
    except DriverError as error:
        if error.reason in _ABSENT:
            return None
        raise


def field_value(handle: Any, number: int) -> int | None:
    """Read one field value of a GPU; None where this board or driver does not have it."""
    values = optional("nvmlDeviceGetFieldValues", handle, [number])
    if values is None or values[0].nvmlReturn != binding.NVML_SUCCESS:
        return None
    return int(values[0].value.uiVal)


def given(number: int) -> int | None:
    """Return an id, None for what NVML writes where there is none."""
    return None if number in _NONE else number
