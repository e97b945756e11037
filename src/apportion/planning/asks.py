"""What somebody wants of the GPUs, before anything decides how it is met. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from apportion.errors import InvalidInputError
from apportion.planning.isolation import Isolation, parse_isolation
from apportion.quantities.shares import Number, exact_text, parse_share_of_gpus
from apportion.quantities.sizes import format_bytes, parse_memory

MOST_GPUS: Final = 10_000
MOST_HOLDERS: Final = 48  # what one GPU's MPS server takes; slots per GPU and sharers alike

_LONGEST_LABEL = 200
_ASK_GRAMMAR = "LABEL:WHAT, with WHAT a fraction, a MIG profile, an amount of memory or 2slots"


@dataclass(frozen=True, slots=True, init=False)
class FractionalAsk:
    """One ask, in exactly one form: a fraction, a MIG profile, memory, slots or whole GPUs.

    ``FractionalAsk("a", 0.5)`` asks for half of a GPU's compute; nothing at all for one whole GPU.
    A fraction is below 1 or a whole number, and then ``gpus`` holds it too. ``mig_profile`` is in
    the driver's spelling, ``memory`` in bytes (given as text it needs a unit), ``slots`` 1 to 48,
    ``gpus`` 1 to 10,000.

    ``isolation`` is the least that is accepted, whatever else is unavailable; a named MIG profile
    means at least ``hardware``. ``allow_larger`` lets a larger profile, or a whole GPU, stand in
    for a named profile that is not to be had.
    """

    label: str
    fraction: Fraction | None
    mig_profile: str | None
    memory: int | None
    slots: int | None
    gpus: int | None
    isolation: Isolation
    allow_larger: bool

    def __init__(
        self,
        label: str,
        fraction: Number | None = None,
        *,
        mig_profile: str | None = None,
        memory: str | int | None = None,
        slots: int | None = None,
        gpus: int | None = None,
        isolation: str | None = None,
        allow_larger: bool = False,
    ) -> None:
        """Read and check every part; raises InvalidInputError that names it."""
        forms = {
            "fraction": fraction,
            "mig_profile": mig_profile,
            "memory": memory,
            "slots": slots,
            "gpus": gpus,
        }
        _at_most_one(forms)
        if gpus is not None:
            fraction = _count(gpus, "gpus", MOST_GPUS)
        elif all(form is None for form in forms.values()):
            fraction = 1
        share = None if fraction is None else _share(fraction)
        profile = None if mig_profile is None else _profile(mig_profile)
        least = Isolation.SOFT if isolation is None else parse_isolation(isolation)
        if profile is not None and not least.covers(Isolation.HARDWARE):
            least = Isolation.HARDWARE
        self._set(
            label=_label(label),
            fraction=share,
            mig_profile=profile,
            memory=None if memory is None else _memory(memory),
            slots=None if slots is None else _count(slots, "slots", MOST_HOLDERS),
            gpus=int(share) if share is not None and share >= 1 else None,
            isolation=least,
            allow_larger=allow_larger,
        )

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)


def parse_ask(
    text: str, *, field: str = "ask", isolation: str | None = None, allow_larger: bool = False
) -> FractionalAsk:
    """Read ``a:0.5``, ``a:2`` (whole GPUs), ``a:2g.10gb``, ``a:20Gi`` or ``a:2slots``.

    The label is all before the last colon. Raises InvalidInputError that names ``field`` and the
    label.
    """
    label, colon, what = text.rpartition(":")
    if not colon or not label or not what:
        raise InvalidInputError("is no ask", field=field, given=text, allowed=_ASK_GRAMMAR)
    slots = re.fullmatch(r"([0-9]{1,9})slots?", what)
    profile = re.search(r"[0-9]g\.", what, re.IGNORECASE)
    memory = re.fullmatch(r"[0-9.]+(?:[kgtpe]i?b?|mi?b|mi|M)", what, re.IGNORECASE)
    is_memory = memory is not None and not re.fullmatch(r"[0-9.]+m", what)
    try:
        return FractionalAsk(
            label,
            None if slots or profile or is_memory else what,
            mig_profile=what if profile else None,
            memory=what if is_memory else None,
            slots=int(slots[1]) if slots else None,
            isolation=isolation,
            allow_larger=allow_larger,
        )
    except InvalidInputError as error:
        raise InvalidInputError(
            error.message,
            field=f"{field} {label!r}",
            given=error.given,
            allowed=error.allowed,
            hint=error.hint,
            details=error.details,
        ) from None


def describe(ask: FractionalAsk) -> str:
    """Say in a few words what is asked for: ``0.25``, ``2g.10gb``, ``20GiB``, ``2 slots``."""
    if ask.gpus is not None:
        return f"{ask.gpus} GPU{'s' if ask.gpus > 1 else ''}"
    if ask.fraction is not None:
        return exact_text(ask.fraction)
    if ask.memory is not None:
        return format_bytes(ask.memory)
    if ask.slots is not None:
        return f"{ask.slots} slot{'s' if ask.slots > 1 else ''}"
    return ask.mig_profile or ""


def _at_most_one(forms: Mapping[str, object]) -> None:
    """Refuse an ask in two forms: whichever won, the other would be dropped in silence."""
    given = [name for name, value in forms.items() if value is not None]
    if len(given) > 1:
        raise InvalidInputError(
            "an ask has one form",
            field=given[1],
            given=" and ".join(given),
            allowed="one of fraction, mig_profile, memory, slots, gpus",
        )


def _share(fraction: Number) -> Fraction:
    share = parse_share_of_gpus(fraction)
    if share > MOST_GPUS:
        raise InvalidInputError(
            "is too many GPUs", field="fraction", given=fraction, allowed=f"up to {MOST_GPUS}"
        )
    return share


def _profile(text: str) -> str:
    """Bring a name into the driver's spelling; only asks with a profile load the grammar."""
    from apportion.geometry.profile_names import parse_profile

    return str(parse_profile(text, field="mig_profile"))


def _memory(value: str | int) -> int:
    return parse_memory(value if isinstance(value, str) else f"{value}B")


def _count(value: int, field: str, most: int) -> int:
    if isinstance(value, bool) or not 1 <= value <= most:
        raise InvalidInputError("is out of range", field=field, given=value, allowed=f"1 to {most}")
    return value


def _label(text: str) -> str:
    """Refuse labels that would break a table, a record or a terminal (control characters)."""
    if not 0 < len(text) <= _LONGEST_LABEL or not text.isprintable() or not text.strip():
        raise InvalidInputError(
            "is no label",
            field="label",
            given=text[:60],
            allowed=f"1 to {_LONGEST_LABEL} printable characters",
        )
    return text
