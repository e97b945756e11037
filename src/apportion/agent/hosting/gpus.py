"""How the driver has set up the host's GPUs."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from apportion.agent.hosting.comparing import UnknownError, shown
from apportion.agent.nvml import Driver, DriverError
from apportion.agent.units import Mismatch, Wanted

_COMPUTE_MODES: Final = ("default", "exclusiveThread", "prohibited", "exclusiveProcess")
_MILLI: Final = 1000


def look_at_gpus(driver: Driver, wanted: Wanted) -> Iterator[Mismatch]:
    """Compare what is wanted with each GPU; of one that does not answer nobody can tell."""
    try:
        count = driver.gpu_count()
    except DriverError as error:
        raise UnknownError(error.message) from error
    for index in range(count):
        try:
            gpu = driver.uuid(index)
        except DriverError:
            gpu = f"GPU {index}"
        for name, value in wanted.items():
            found = _found(driver, gpu, name)
            if found != shown(value):
                yield Mismatch(field=name, wanted=shown(value), found=found, object=gpu)


def _found(driver: Driver, gpu: str, name: str) -> str | None:
    try:
        return _READS[name](driver, gpu)
    except (DriverError, KeyError):
        return None


def _persistence(driver: Driver, gpu: str) -> str | None:
    on = driver.persistence_mode(gpu)
    return None if on is None else shown(on)


def _ecc(driver: Driver, gpu: str) -> str | None:
    modes = driver.ecc_mode(gpu)
    if modes is None:
        return None
    now, next_time = modes
    return shown(now) if now == next_time else f"{shown(now)}, {shown(next_time)} at the next reset"


def _compute(driver: Driver, gpu: str) -> str:
    return _COMPUTE_MODES[driver.compute_mode(gpu)]


def _power(driver: Driver, gpu: str) -> str | None:
    """Return the power limit in watts, exact: drivers count milliwatts."""
    limit = driver.power_limit_milliwatts(gpu)
    if limit is None:
        return None
    watts, rest = divmod(limit, _MILLI)
    return f"{watts}.{rest:03d}" if rest else str(watts)


_READS: Final[Mapping[str, Callable[[Driver, str], Any]]] = {
    "persistenceMode": _persistence,
    "ecc": _ecc,
    "computeMode": _compute,
    "powerLimitWatts": _power,
}
