"""What a MIG board is: its ruler of units, its profiles and where each may lie.

A `Placement` is a set of units of the board's ruler, as a bit mask: the contiguous memory slices of
a GPU instance and the scarce engines that it takes. Two GPU instances can live side by side exactly
when their masks share no bit.

The small values are named tuples: making a data class costs a millisecond of every start.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from apportion.errors import InvalidInputError, InvalidStateError
from apportion.geometry.profile_names import ProfileName, parse_profile


class Ruler(NamedTuple):
    """The units of one GPU: memory slices, then the OFA, then media engines where scarce.

    ``names[i]`` is what unit ``i`` is called: `memory 0`, `ofa`, `media 0`.
    """

    units: int
    memory_units: int
    names: tuple[str, ...]

    @property
    def mask(self) -> int:
        """Every unit of the ruler."""
        return (1 << self.units) - 1

    @property
    def memory_mask(self) -> int:
        """The memory slices alone."""
        return (1 << self.memory_units) - 1


class Placement(NamedTuple):
    """One legal place of one profile.

    The memory slices ``[start, start + size)``, and the mask of these and the engines with them.
    """

    profile: str
    start: int
    size: int
    mask: int


class Engines(NamedTuple):
    """How many engines a GPU instance gets; None where no source says."""

    copy_engines: int | None
    decoders: int | None
    encoders: int | None
    jpeg: int | None
    ofa: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A kind of GPU instance of one board; the name and the id mean something on that board only.

    ``id`` is the driver's profile id (what `nvidia-smi mig -cgi` takes). ``memory_mib`` is the
    smallest figure that any driver was seen to report, in MiB; None where none was seen. ``share``
    is what one instance costs of a GPU hour: its compute slices over the board's. ``memory_slices``
    and ``placements`` are None and empty where the board's geometry is unknown. ``attributes`` are
    those of its name. ``nvml_profile`` is the number by which NVML is asked about the profile, and
    differs from the id.
    """

    name: str
    id: int | None
    nvml_profile: int | None
    compute_slices: int
    memory_slices: int | None
    memory_mib: int | None
    share: Fraction
    attributes: frozenset[str]
    max_instances: int
    engines: Engines
    sm: int | None
    placements: tuple[Placement, ...]

    @property
    def parsed(self) -> ProfileName:
        """The name in its parts."""
        return parse_profile(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A GPU product that MIG can split.

    ``model`` is the driver's name for it. ``compute_slices`` is the denominator of every share.
    ``memory_slices`` counts the placement grid. ``memory_total_mib`` is what a driver reported
    (None where no report was seen), ``nominal_gb`` what the name says. ``placement_basis`` says how
    sure the placements are: observed, inferred, or unknown, and then ``placements_known`` is False
    and ``ruler`` None. ``mode_change_needs_reset`` and ``mode_survives_reboot`` are those of the
    MIG mode (GPU instances survive neither). A driver's own answer always wins.
    """

    key: str
    model: str
    architecture: str
    compute_slices: int
    memory_slices: int | None
    memory_total_mib: int | None
    nominal_gb: int
    placements_known: bool
    placement_basis: str
    mode_change_needs_reset: bool
    mode_survives_reboot: bool
    max_instances: int
    profiles: tuple[Profile, ...]
    ruler: Ruler | None
    pci_device_ids: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def family(self) -> str:
        """What pools and meters are keyed by, such as `H100`."""
        from apportion.geometry.device_names import parse_device_name

        # A model's parenthesis explains the name and is no part of it: `(SXM5)`, `(GB10B)`.
        return parse_device_name(self.model.partition(" (")[0]).family

    @property
    def profiles_text(self) -> str:
        """The names of the board's profiles, for messages."""
        return ", ".join(profile.name for profile in self.profiles)

    def profile(self, text: str, *, field: str = "profile") -> Profile:
        """Return the profile of that name.

        InvalidInputError when the text is not a profile's name, or not of a profile of this board.
        """
        parsed = parse_profile(text, field=field)
        name = str(parsed)
        for profile in self.profiles:
            if profile.name == name:
                return profile
        near = self.nearest_profile(parsed)
        raise InvalidInputError(
            f"{self.model} has no such profile",
            field=field,
            given=text,
            allowed=self.profiles_text,
            hint=f"The nearest is {near.name}",
            details={"reason": "no_such_profile", "nearest": near.name, "board": self.key},
        )

    def nearest_profile(self, name: ProfileName) -> Profile:
        """Return the profile closest to a name: by compute slices, then attributes, then memory."""

        def distance(profile: Profile) -> tuple[int, int, int]:
            parsed = profile.parsed
            return (
                abs(parsed.compute - name.compute),
                len(parsed.attributes ^ name.attributes),
                abs(parsed.gigabytes - name.gigabytes),
            )

        return min(self.profiles, key=distance)

    def known_ruler(self) -> Ruler:
        """Return the ruler; InvalidStateError where nobody has reported the board's placements."""
        if self.ruler is None:
            raise InvalidStateError(
                f"geometry unknown: no source lists where the profiles of {self.model} may lie",
                hint="Nothing is placed on this board until a node reports its placements",
                details={"reason": "geometry_unknown", "board": self.key},
            )
        return self.ruler
