"""Which board a device name means: exactly one, or an error that says why it is none or several.

One family can hold boards with different geometry (`1g.10gb` is a seventh of an A100 80GB and a
double-memory slice of an A100 40GB), so a name that fits several boards is never resolved by a
guess.
"""

import re
from typing import Final

from apportion.errors import InvalidInputError
from apportion.geometry.board import Board
from apportion.geometry.catalog import board_by_key, boards
from apportion.geometry.device_names import DeviceName, parse_device_name

# The words by which each board is known, beside its family and its memory.
_WORDS: Final = {
    "a100-sxm4-40gb": "a100 sxm sxm4",
    "a100-pcie-40gb": "a100 pcie",
    "a100-sxm4-80gb": "a100 sxm sxm4",
    "a100-pcie-80gb": "a100 a100x pcie",
    "a800-40gb": "a800 pcie active",
    "a800-80gb": "a800 sxm sxm4 pcie",
    "pg506-96gb": "pg506 232",
    "a30-24gb": "a30 a30x pcie",
    "h100-sxm5-80gb": "h100 sxm sxm5 hbm3",
    "h100-pcie-80gb": "h100 pcie hbm2e",
    "h800-80gb": "h800 sxm sxm5 pcie hbm3 hbm2e",
    "h100-nvl-94gb": "h100 nvl hbm3",
    "h800-nvl-94gb": "h800 nvl hbm3",
    "h100-sxm5-94gb": "h100 sxm sxm5 hbm2e",
    "h100-sxm5-64gb": "h100 sxm sxm5 hbm2 hbm2e",
    "gh200-96gb": "gh200 h100 480gb 240gb 120gb hbm3",
    "h20-96gb": "h20 sxm sxm5 hbm3",
    "h20-141gb": "h20 3e sxm sxm5 hbm3e",
    "h200-sxm5-141gb": "h200 sxm sxm5 hbm3e",
    "h200-nvl-141gb": "h200 nvl hbm3e",
    "gh200-144gb": "gh200 hbm3e",
    "b200-180gb": "b200 sxm sxm6 hbm3e",
    "gb200-186gb": "gb200 hbm3e",
    "b300-269gb": "b300 sxm sxm6 ac hbm3e",
    "gb300-278gb": "gb300 hbm3e",
    "rtx-pro-6000-blackwell-server": "rtx pro 6000 blackwell server edition",
    "rtx-pro-6000-blackwell-workstation": "rtx pro 6000 blackwell max q workstation edition",
    "rtx-pro-5000-blackwell-48gb": "rtx pro 5000 blackwell",
    "rtx-pro-4500-blackwell-32gb": "rtx pro 4500 blackwell server edition",
    "rtx-6000d-84gb": "rtx 6000d",
    "thor-igpu": "thor igpu",
}
# NVML's whole name of the one board where that is the bare family although there are siblings.
_BARE_NVML_NAMES: Final = {"nvidia h200": "h200-sxm5-141gb"}
_SILENT: Final = frozenset({"nvidia", "hgx", "dgx", "tensor", "core", "gpu"})
_PCI: Final = re.compile(
    r"(?:0x)?(?P<device>[0-9a-f]{4})(?:10de)?|10de:(?P<after>[0-9a-f]{4})", re.IGNORECASE
)


def find_board(
    text: str,
    *,
    memory_mib: int | None = None,
    pci_device_id: str | None = None,
    field: str = "gpu_model",
) -> Board:
    """Return the one MIG board that a name means.

    ``memory_mib`` (NVML's total, MiB) and ``pci_device_id`` (`0x2330`, `0x233010DE`, `10de:2330`)
    narrow a name that several boards share. InvalidInputError when no board has the name, when
    several do (they are named), or when memory or PCI id contradict it.
    """
    key = text.strip().lower()
    if key in _WORDS and memory_mib is None and pci_device_id is None:
        return board_by_key(key)
    name = parse_device_name(text, field=field)
    named = [board_by_key(key) for key in _WORDS if _has_family(key, name)]
    named = [board for board in named if _has_words(board, name)]
    if not named:
        raise _unknown(text, field)
    found = _narrowed(named, memory_mib, pci_device_id)
    if not found:
        raise _contradicted(text, field, named, memory_mib, pci_device_id)
    if len(found) > 1:
        found = _bare(found, name)
    if len(found) > 1:
        raise _ambiguous(text, field, found)
    return found[0]


def board_by_pci(pci_device_id: str) -> Board | None:
    """Return the board of a PCI device id in any of its spellings, None when no board has it."""
    device = pci_device(pci_device_id)
    return next((board for board in boards() if device in board.pci_device_ids), None)


def pci_device(text: str, *, field: str = "pci_device_id") -> str:
    """Return a PCI device id of NVIDIA as `0x2330`, from any of its spellings."""
    match = _PCI.fullmatch(text.strip().lower())
    if match is None:
        raise InvalidInputError(
            "not a PCI device id of NVIDIA",
            field=field,
            given=text,
            allowed="0x2330, 0x233010DE or 10de:2330",
        )
    return "0x" + (match["device"] or match["after"]).upper()


def _has_family(key: str, name: DeviceName) -> bool:
    return set(name.family.lower().split()) <= set(_WORDS[key].split())


def _has_words(board: Board, name: DeviceName) -> bool:
    """Tell whether the board has every word of the name, and its memory as a number."""
    same_memory = name.memory_gb is None or name.memory_gb == board.nominal_gb
    return same_memory and set(name.words) - _SILENT <= set(_WORDS[board.key].split())


def _narrowed(found: list[Board], memory_mib: int | None, pci_device_id: str | None) -> list[Board]:
    """Keep the boards of the PCI id, if it is a known board's, then those of the memory."""
    if pci_device_id is not None and (board := board_by_pci(pci_device_id)) is not None:
        found = [candidate for candidate in found if candidate == board]
    if memory_mib is not None and len(found) > 1:
        found = _of_memory(found, memory_mib)
    return found


def _of_memory(found: list[Board], memory_mib: int) -> list[Board]:
    """Keep the boards whose label comes nearest to NVML's total, within a tenth of it.

    The total is the label's GiB rounded up, or a little less where the driver or ECC keeps some.
    A name that is clear is never refused for it: a virtual GPU reports less than its board has.
    """
    gigabytes = -(-memory_mib // 1024)
    apart = min(abs(board.nominal_gb - gigabytes) for board in found)
    return [
        board
        for board in found
        if abs(board.nominal_gb - gigabytes) == apart and apart * 10 <= board.nominal_gb
    ]


def _bare(found: list[Board], name: DeviceName) -> list[Board]:
    key = None if name.memory_gb else _BARE_NVML_NAMES.get(" ".join(name.words))
    return [board for board in found if board.key == key] or found


def _unknown(text: str, field: str) -> InvalidInputError:
    from difflib import get_close_matches

    keys = {board.key: board for board in boards()}
    near = get_close_matches(text.strip().lower().replace(" ", "-"), keys, n=3, cutoff=0.5)
    return InvalidInputError(
        "no board that MIG can split is known by this name",
        field=field,
        given=text,
        hint=f"Near: {', '.join(near)}" if near else "apportion gpu list shows them all",
        details={"reason": "unknown_board", "near": near},
    )


def _contradicted(
    text: str, field: str, named: list[Board], memory_mib: int | None, pci_device_id: str | None
) -> InvalidInputError:
    facts = [f"{memory_mib} MiB"] if memory_mib is not None else []
    facts += [f"PCI id {pci_device_id}"] if pci_device_id is not None else []
    return InvalidInputError(
        f"no board of this name has {' and '.join(facts)}",
        field=field,
        given=text,
        allowed=_choices(named),
        details={"reason": "contradicted", "candidates": [board.key for board in named]},
    )


def _ambiguous(text: str, field: str, found: list[Board]) -> InvalidInputError:
    return InvalidInputError(
        "could be several boards",
        field=field,
        given=text,
        allowed=_choices(found),
        hint="Boards of one family differ in their profiles: name the one that is meant",
        details={"reason": "ambiguous", "candidates": [board.key for board in found]},
    )


def _choices(found: list[Board]) -> str:
    return ", ".join(f"{board.key} ({board.model})" for board in found)
