"""How much of a GPU a share of it is, in the units that the MPS daemon takes. Pure.

It takes whole percents and whole MiB, so a share is rounded down in both: the shares of a GPU never
come to more than the GPU. What rounding leaves over is nobody's.
"""

from dataclasses import dataclass
from fractions import Fraction

from apportion.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that one process may use: percent of the SMs (1 to 100), device memory in MiB.

    The driver rounds the percentage down again, to what its SMs can be cut into.
    """

    percentage: int
    memory_mib: int


def limits_of(share: Fraction, memory_mib: int) -> Limits:
    """Return the limits of ``share`` of a GPU (above 0, at most 1) that has ``memory_mib``.

    Raises InvalidInputError for a share out of range, and for one that is less than 1 percent or
    1 MiB: MPS has no smaller limit, and 0 would be read as none at all.
    """
    if not 0 < share <= 1:
        raise InvalidInputError(
            "must be above 0 and at most 1",
            field="share",
            given=str(share),
            allowed="0 < share <= 1",
        )
    limits = Limits(int(share * 100), int(share * memory_mib))
    if limits.percentage < 1 or limits.memory_mib < 1:
        raise InvalidInputError(
            "is less than MPS can limit a process to",
            field="share",
            given=str(share),
            allowed="at least 1/100, and 1 MiB of the GPU's memory",
        )
    return limits
