"""The largest request of a class that fits: what a free sum alone does not tell.

Sixteen free GPUs on sixteen nodes serve no request for two. So that a sum never promises what
nothing can take, the largest request is found by asking for it, as a holder would.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from apportion.placement.asks import AtomClass, DeviceAsk
from apportion.placement.models import Model
from apportion.placement.selectors import Expression, Selector
from apportion.quantities.units import span


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest request of ``cls`` for which there is room.

    ``count`` is how many whole GPUs of one node (``gpu``), ``units`` how many slots or hundredths
    of one GPU (``gpu.slot``, ``gpu.share``), ``profile`` which instance (``gpu.mig``); 0 or None
    where not even the smallest has room, and of the other classes.
    """

    cls: AtomClass
    count: int = 0
    units: int = 0
    profile: str | None = None


def largest(
    cls: AtomClass, models: Iterable[Model], gpus: int, fits: Callable[[DeviceAsk], bool]
) -> Largest:
    """Ask ``fits`` for ever better guesses; ``gpus`` is the most that a node can have."""
    cut = [model for model in models if cls in model.classes]
    if cls == "gpu":
        return Largest(cls, count=_most(gpus if cut else 0, lambda n: fits(DeviceAsk(cls, n))))
    if cls == "gpu.mig":
        return Largest(cls, profile=_profile(cut, fits))
    most = max((model.ruler for model in cut), default=0)
    return Largest(cls, units=_most(most, lambda n: fits(DeviceAsk(cls, 1, n))))


def _most(most: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number up to ``most`` that fits, where all smaller ones do; or 0."""
    least = 0
    while least < most:
        middle = (least + most + 1) // 2
        if fits(middle):
            least = middle
        else:
            most = middle - 1
    return least


def _profile(models: Iterable[Model], fits: Callable[[DeviceAsk], bool]) -> str | None:
    """Try the profiles from the largest down: by memory slices, by all units, then by name."""
    sizes: dict[str, tuple[int, int]] = {}
    for model in models:
        for part in model.parts:
            if part.cls != "gpu.mig":
                continue
            slices = (part.units & span(0, model.ruler)).bit_count()
            size = slices, part.units.bit_count()
            name = str(part.attributes["migProfile"])
            sizes[name] = max(size, sizes.get(name, size))
    for name in sorted(sizes, key=lambda name: (sizes[name], name), reverse=True):
        only = Selector((Expression("migProfile", "In", (name,)),))
        if fits(DeviceAsk("gpu.mig", selector=only)):
            return name
    return None
