"""GPU boards that MIG can split: rulers, profiles, placements, layouts, and all their names.

A name is loaded with its module when it is first used: `apportion plan` must start in a few
hundredths of a second and needs a fraction of this room.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from apportion.geometry.board import Board, Engines, Placement, Profile, Ruler
    from apportion.geometry.catalog import board_by_key, boards
    from apportion.geometry.device_names import DeviceName, parse_device_name
    from apportion.geometry.finding import board_by_pci, find_board
    from apportion.geometry.layouts import Layout, layout_name, layout_of, parse_layout
    from apportion.geometry.mig_parted import MigPartedEntry, read_mig_parted
    from apportion.geometry.profile_names import ProfileName, parse_profile
    from apportion.geometry.search import addable, place_all, why_not
    from apportion.geometry.stranding import Stranded, stranded

_HOMES = {
    "board": ("Board", "Engines", "Placement", "Profile", "Ruler"),
    "catalog": ("board_by_key", "boards"),
    "device_names": ("DeviceName", "parse_device_name"),
    "finding": ("board_by_pci", "find_board"),
    "layouts": ("Layout", "layout_name", "layout_of", "parse_layout"),
    "mig_parted": ("MigPartedEntry", "read_mig_parted"),
    "profile_names": ("ProfileName", "parse_profile"),
    "search": ("addable", "place_all", "why_not"),
    "stranding": ("Stranded", "stranded"),
}

__all__ = [
    "Board",
    "DeviceName",
    "Engines",
    "Layout",
    "MigPartedEntry",
    "Placement",
    "Profile",
    "ProfileName",
    "Ruler",
    "Stranded",
    "addable",
    "board_by_key",
    "board_by_pci",
    "boards",
    "find_board",
    "layout_name",
    "layout_of",
    "parse_device_name",
    "parse_layout",
    "parse_profile",
    "place_all",
    "read_mig_parted",
    "stranded",
    "why_not",
]


def __getattr__(name: str) -> object:
    """Load a public name from the module that has it."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
