"""GPU boards that MIG can split: rulers, profiles, placements, layouts, and all their names."""

from apportion.geometry.boards import Board, Engines, Placement, Profile, Ruler
from apportion.geometry.catalog import board_by_key, boards
from apportion.geometry.device_names import DeviceName, parse_device_name
from apportion.geometry.finding import board_by_pci, find_board
from apportion.geometry.profile_names import ProfileName, parse_profile
from apportion.geometry.search import Stranded, addable, place_all, stranded, why_not

__all__ = [
    "Board",
    "DeviceName",
    "Engines",
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
    "parse_device_name",
    "parse_profile",
    "place_all",
    "stranded",
    "why_not",
]
