"""How many columns of a terminal a text takes, and texts padded to a number of them.

Ideographs and most emoji take two, marks on the letter before them none.
"""

import unicodedata
from typing import Final

_NONE: Final = ("Mn", "Me", "Cf")
_WIDE: Final = ("W", "F")


def columns(text: str) -> int:
    """Count the columns of a text without control characters."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def left(text: str, width: int) -> str:
    """Pad behind the text."""
    return text + " " * (width - columns(text))


def right(text: str, width: int) -> str:
    """Pad before the text."""
    return " " * (width - columns(text)) + text


def centred(text: str, width: int) -> str:
    """Pad on both sides, as str.center does."""
    return text.center(width - columns(text) + len(text))


def _columns(char: str) -> int:
    if unicodedata.category(char) in _NONE:
        return 0
    return 2 if unicodedata.east_asian_width(char) in _WIDE else 1
