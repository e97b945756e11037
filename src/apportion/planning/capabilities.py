"""What a cluster's GPUs can do, as far as the planner needs to know. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Final

from apportion.errors import InvalidInputError
from apportion.planning.asks import MOST_HOLDERS

if TYPE_CHECKING:  # loading the geometry would double the start-up of plans that need none
    from apportion.geometry import Board, Profile

ASSUMED_MODEL: Final = "A100-SXM4-40GB"
MPS_UNITS: Final = 100  # what one GPU's MPS server can give out, in hundredths of its threads


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterGpuCaps:
    """The sharing that a cluster or a pool supports; every GPU of it is alike.

    ``mig_profiles`` are the profiles that are offered, None for all that the board has. A GPU that
    is time-sliced or shared by MPS has ``slots_per_gpu`` fixed slots (1 to 48), or else
    ``shares_per_gpu`` free shares (100 in a pool; None splits exactly as asked), for 48 holders at
    most. Without ``gpu_model`` `ASSUMED_MODEL` is assumed, which whoever prints the answer has to
    say. ``memory_mib`` is one GPU's memory where it was reported; else the board's is used.

    Raises InvalidInputError that names the field. A profile or a model that no board has is found
    out by `board` and `offered`, so that asks which need neither work for GPUs without MIG.
    """

    supports_mig: bool = False
    supports_mps: bool = False
    supports_timeslice: bool = False
    mig_profiles: Sequence[str] | None = None
    slots_per_gpu: int | None = None
    shares_per_gpu: int | None = None
    gpu_model: str | None = None
    memory_mib: int | None = None

    def __post_init__(self) -> None:
        """Check the ranges, and bring the profiles' names into the driver's spelling."""
        _in_range("slots_per_gpu", self.slots_per_gpu, MOST_HOLDERS)
        _in_range("shares_per_gpu", self.shares_per_gpu, 10_000)
        _in_range("memory_mib", self.memory_mib, 2**40)
        if self.slots_per_gpu is not None and self.shares_per_gpu is not None:
            raise InvalidInputError(
                "a GPU has fixed slots or free shares, not both",
                field="shares_per_gpu",
                given=self.shares_per_gpu,
                allowed="slots_per_gpu or shares_per_gpu",
            )
        if isinstance(self.mig_profiles, str):
            raise InvalidInputError(
                "is not a list", field="mig_profiles", given=self.mig_profiles, allowed="a list"
            )
        if self.mig_profiles is not None:
            from apportion.geometry.profile_names import parse_profile

            names = (
                str(parse_profile(text, field=f"mig_profiles[{index}]"))
                for index, text in enumerate(self.mig_profiles)
            )
            object.__setattr__(self, "mig_profiles", tuple(dict.fromkeys(names)))

    @property
    def board(self) -> "Board":
        """Give the model's board; InvalidInputError if it is unknown or ambiguous."""
        return _board(self.gpu_model or ASSUMED_MODEL)

    @property
    def offered(self) -> "tuple[Profile, ...]":
        """Give the MIG profiles on offer, smallest share first, those with attributes last."""
        if not self.supports_mig:
            return ()
        board = self.board
        profiles = board.profiles
        if self.mig_profiles is not None:
            profiles = tuple(
                board.profile(name, field=f"mig_profiles[{index}]")
                for index, name in enumerate(self.mig_profiles)
            )
        return tuple(sorted(profiles, key=_size))

    @property
    def memory_bytes(self) -> int:
        """Give one GPU's memory: as reported, else the board's, else its name's decimal GB.

        0 where not even the name says (a board that shares its host's memory).
        """
        mib = self.memory_mib or self.board.memory_total_mib
        return mib * 2**20 if mib is not None else self.board.nominal_gb * 10**9

    @property
    def splits(self) -> bool:
        """Tell whether the GPUs can be shared in any way."""
        return self.supports_mig or self.supports_mps or self.supports_timeslice

    @property
    def mps_slot_units(self) -> int:
        """Give the MPS units of one fixed slot: 7 slots get 14 each, and 2 are stranded."""
        return MPS_UNITS // (self.slots_per_gpu or 1)


def _size(profile: "Profile") -> tuple[Fraction, int, int, str]:
    return profile.share, profile.memory_slices or 0, len(profile.attributes), profile.name


@cache
def _board(model: str) -> "Board":
    from apportion.geometry.finding import find_board

    return find_board(model, field="gpu_model")


def _in_range(field: str, value: int | None, most: int) -> None:
    if value is not None and (isinstance(value, bool) or not 1 <= value <= most):
        raise InvalidInputError("is out of range", field=field, given=value, allowed=f"1 to {most}")
