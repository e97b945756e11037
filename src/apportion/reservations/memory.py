"""The memory of large pictures, kept in large pages where the system can.

A picture of a million GPUs is some gigabytes of small objects, and a decision looks at a few dozen
of them anywhere. With pages of 4 KiB the processor has to look up where each of them lies as well:
that is a fifth of a decision, and more the larger the picture is.
"""

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_PAGE: Final = 2 << 20
_HUGEPAGE: Final = 14
_COLLAPSE: Final = 25
"""``MADV_HUGEPAGE`` asks for large pages from now on, ``MADV_COLLAPSE`` (Linux 6.1) at once."""


def gather() -> None:
    """Ask the system to keep this process's memory in pages of 2 MiB.

    It takes about a second for some gigabytes and is advice alone: where the system cannot, or will
    not, everything stays as it is.
    """
    if sys.platform != "linux":
        return
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for start, end in list(_own()):
        for advice in (_HUGEPAGE, _COLLAPSE):
            advise(start, end - start, advice)


def _own() -> Iterator[tuple[int, int]]:
    """Yield the whole large pages of what is this process's alone and can be written."""
    try:
        lines = Path("/proc/self/maps").read_text("utf-8", "replace").splitlines()
    except OSError:
        return
    for line in lines:
        where, rights, _, _, inode, *name = line.split(maxsplit=5)
        if inode != "0" or rights != "rw-p" or (name and name[0] != "[heap]"):
            continue
        first, last = (int(each, 16) for each in where.split("-"))
        start, end = -(-first // _PAGE) * _PAGE, last // _PAGE * _PAGE
        if start < end:
            yield start, end
