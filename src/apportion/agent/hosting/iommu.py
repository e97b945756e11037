"""What the IOMMU does for the host's GPUs: nothing, translate, or let addresses pass."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from apportion.agent.hosting.comparing import UnknownError, read, shown
from apportion.agent.units import Mismatch, Wanted

_NVIDIA: Final = "0x10de"
_DISPLAY: Final = "0x03"
_MODES: Final = {"identity": "passthrough", "DMA": "on", "DMA-FQ": "on"}


def look_at_iommu(root: Path, wanted: Wanted) -> Iterator[Mismatch]:
    """Compare ``mode``, GPU by GPU: a domain of its own makes one differ from the default."""
    if not _is_there(root):
        if wanted["mode"] != "off":
            yield Mismatch(field="mode", wanted=wanted["mode"], found="off")
        return
    gpus = [*_gpus(root)]
    if not gpus:
        raise UnknownError("there is an IOMMU, and no GPU that it could do something for")
    for gpu in gpus:
        kind = read(gpu / "iommu_group/type")
        mode = None if kind is None else _MODES.get(kind, kind)
        if mode != wanted["mode"]:
            found = None if mode is None else shown(mode)
            yield Mismatch(field="mode", wanted=wanted["mode"], found=found, object=gpu.name)


def _is_there(root: Path) -> bool:
    """Tell whether the kernel uses an IOMMU: it lists those that it uses."""
    try:
        return any((root / "sys/class/iommu").iterdir())
    except OSError as error:
        raise UnknownError(f"the kernel does not list IOMMUs: {error.strerror}") from error


def _gpus(root: Path) -> Iterator[Path]:
    """Give the GPUs on the PCI bus, which need no driver to be there."""
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        if read(device / "vendor") == _NVIDIA and (read(device / "class") or "")[:4] == _DISPLAY:
            yield device
