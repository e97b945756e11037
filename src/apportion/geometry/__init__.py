"""GPU boards that MIG can split: rulers, profiles, placements, layouts, and all their names."""

from apportion.geometry.boards import Board, Engines, Placement, Profile, Ruler
from apportion.geometry.catalog import board_by_key, boards
from apportion.geometry.device_names import DeviceName, parse_device_name
from apportion.geometry.finding import board_by_pci, find_board
from apportion.geometry.layouts import Layout, layout_name, layout_of, parse_layout
from apportion.geometry.mig_parted import MigPartedEntry, read_mig_parted
from apportion.geometry.profile_names import ProfileName, parse_profile
from apportion.geometry.search import Stranded, addable, place_all, stranded, why_not

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
