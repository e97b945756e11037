"""MIG profile names: one grammar for what drivers, Kubernetes, Slurm and people write.

    [nvidia.com/][mig-][Cc.]Gg.NNgb[attributes]
    attributes:  +a[,b]...   with (media engines `me`, graphics `gfx`, all media engines `me.all`)
                 -a[,b]...   without
                 .a          a Kubernetes resource name's spelling of +a (it cannot hold a `+`)

Letters may be of either case, digits are ASCII, spaces are never allowed. Being well formed says
nothing about a board: `10000g.500000gb` is a name, and `Board.profile` says whether the board has
it.
"""

import re
from typing import Final, NamedTuple

from apportion.errors import InvalidInputError

GRAMMAR: Final = "a MIG profile such as 1g.10gb, 3g.40gb or 1g.24gb+me"

# Compiled when first used: most commands read no profile's name, and each must start quickly.
_NAME: Final = (
    r"(?:nvidia\.com/)?(?:mig-)?"
    r"(?:(?P<ci>[0-9]{1,9})c\.)?(?P<compute>[0-9]{1,9})g\.(?P<gigabytes>[0-9]{1,9})gb"
    r"(?:(?P<sign>[-+.])(?P<attributes>[a-z][a-z0-9]*(?:\.[a-z][a-z0-9]*)*"
    r"(?:,[a-z][a-z0-9]*(?:\.[a-z][a-z0-9]*)*)*))?"
)
_LONGEST: Final = 128


class ProfileName(NamedTuple):
    """A GPU instance profile's name: compute slices, labelled gigabytes, signed attributes.

    ``attributes`` holds `me`, `gfx`, `me.all` as they are and `-me` with its sign, so that a
    profile with media engines and the one without never become the same name.
    """

    compute: int
    gigabytes: int
    attributes: frozenset[str] = frozenset()

    def __str__(self) -> str:
        """Give the driver's own spelling, such as `1g.24gb+me.all` or `1g.24gb-me`."""
        plus = sorted(a for a in self.attributes if not a.startswith("-"))
        minus = sorted(a[1:] for a in self.attributes if a.startswith("-"))
        text = f"{self.compute}g.{self.gigabytes}gb"
        if plus:
            text += "+" + ",".join(plus)
        if minus:
            text += "-" + ",".join(minus)
        return text


def parse_profile(text: str, *, field: str = "profile") -> ProfileName:
    """Read a profile's name; raise InvalidInputError when it is not one.

    `1c.1g.10gb` is the whole of `1g.10gb` and reads as that. `1c.3g.20gb` is refused: it is a
    compute instance, a part of a GPU instance that shares the instance's memory, and not a thing to
    be booked.
    """
    match = None
    if len(text) <= _LONGEST:
        match = re.fullmatch(_NAME, text, re.ASCII | re.IGNORECASE)
    if match is None:
        raise _not_a_profile(text, field)
    attributes = (match["attributes"] or "").lower().split(",") if match["attributes"] else []
    if len(set(attributes)) != len(attributes):
        raise _not_a_profile(text, field)
    if match["sign"] == "-":
        attributes = [f"-{attribute}" for attribute in attributes]
    name = ProfileName(
        compute=int(match["compute"]),
        gigabytes=int(match["gigabytes"]),
        attributes=frozenset(attributes),
    )
    if match["ci"] is not None and int(match["ci"]) != name.compute:
        raise _compute_instance(text, field, int(match["ci"]), name)
    return name


def _not_a_profile(text: str, field: str) -> InvalidInputError:
    return InvalidInputError(
        "not a MIG profile",
        field=field,
        given=text[:_LONGEST],
        allowed=GRAMMAR,
        details={"reason": "not_a_profile"},
    )


def _compute_instance(text: str, field: str, ci: int, name: ProfileName) -> InvalidInputError:
    if ci > name.compute or ci == 0:
        return _not_a_profile(text, field)
    return InvalidInputError(
        f"a compute instance ({ci} of the {name.compute} compute slices of a {name}), not a "
        "GPU instance: it shares that instance's memory and cannot be given out alone",
        field=field,
        given=text,
        allowed=str(name),
        details={"reason": "compute_instance", "gpu_instance": str(name)},
    )
