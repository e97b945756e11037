"""GPU equivalents as whole numbers of one fine unit, so that a sum of shares stays exact.

Every share that a booking can have has a denominator that divides the fine unit: slots are 1/1 to
1/48, MPS units and free shares hundredths, MIG instances fourths, sevenths or eighths.
"""

from fractions import Fraction
from math import lcm
from typing import Final

PER_GPU: Final = lcm(*range(1, 49), 100)
"""How many fine units make one GPU: 442720643463713815200."""


def to_fine(share: Fraction) -> int:
    """Return a share of GPUs in fine units.

    Raises ValueError for one whose denominator does not divide `PER_GPU`.
    """
    each, rest = divmod(PER_GPU, share.denominator)
    if rest:
        raise ValueError(f"{share} is no whole number of fine units of a GPU")
    return share.numerator * each


def from_fine(fine: int) -> Fraction:
    """Return fine units as an exact share of GPUs."""
    return Fraction(fine, PER_GPU)
