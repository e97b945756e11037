"""Pictures of GPUs for a terminal, as plain lines.

`draw_gpu` shows what sits where on one GPU, `draw_spans` where things may sit. Both draw with box
characters, or in ASCII where the output cannot show these (`can_draw_boxes`).
"""

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TextIO

from apportion.cli.columns import centred, columns
from apportion.quantities.units import ranges, span

_BOXES: Final = "─│┌┬┐└┴┘…"
_ASCII: Final = "-|++++++~"
_PALETTE: Final = (46, 42, 43, 45, 44, 41)  # cyan, green, yellow, magenta, blue, red background
_FREE: Final = "free"
_NARROWEST: Final = 3  # a border and two columns: less could show no letter of a key


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What sits on some units of a GPU: its label and the mask of the units."""

    label: str
    mask: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    text: str
    cell: int | None  # index of the cell, None where the units are free
    start: int
    size: int


def can_draw_boxes(stream: TextIO | None = None) -> bool:
    """Tell whether a stream's encoding holds the box characters."""
    target = sys.stdout if stream is None else stream
    try:
        _BOXES.encode(target.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def draw_gpu(
    units: int, cells: Sequence[Cell], *, width: int = 73, colour: bool = False, boxes: bool = True
) -> list[str]:
    """Draw one GPU's units as a row of boxes, each as wide as the units that it holds.

    Units from ``units`` on (the engines of a MIG ruler, the seats of a share ruler) are not drawn.
    A label too long for its box becomes a key letter, explained below the picture. Where units are
    so many that boxes would vanish, each gets room for its key and the scale is no longer exact.
    """
    border, bar, *corners, _ = _BOXES if boxes else _ASCII
    runs = _runs(units, cells)
    edges, exact = _edges(runs, units, width)
    texts, keys = _texts(runs, edges, cells)
    body = bar + bar.join(
        _painted(text, run.cell, colour=colour) for text, run in zip(texts, runs, strict=True)
    )
    lines = [_rule(edges, border, corners[:3]), body + bar, _rule(edges, border, corners[3:])]
    if exact:
        lines.append(_numbers(units, width))
    return lines + [f"  {key} = {label}" for key, label in keys]


def draw_spans(
    units: int,
    rows: Sequence[tuple[str, Sequence[tuple[int, int]], str]],
    *,
    boxes: bool = True,
    unit_width: int = 4,
) -> list[str]:
    """Draw rows of spans ``(start, size)`` under unit numbers, each with a label and a remark.

    Spans of one row that overlap go on to a further line.
    """
    indent = max((len(label) for label, _, _ in rows), default=0) + 2
    numbers = "".join(f" {unit:<{unit_width - 1}}" for unit in range(units))
    lines = [" " * indent + numbers.rstrip()]
    for label, spans, remark in rows:
        for number, layer in enumerate(_layers(spans)):
            text = _span_line(units, layer, unit_width, boxes=boxes)
            head = label if number == 0 else ""
            tail = remark if number == 0 else ""
            lines.append(f"{head:<{indent}}{text}  {tail}".rstrip())
    return lines


def _runs(units: int, cells: Sequence[Cell]) -> list[_Run]:
    """Cut the drawn units into runs that hold one cell, or nothing, lowest first."""
    every = span(0, units)
    free = every
    runs: list[_Run] = []
    for index, cell in enumerate(cells):
        free &= ~cell.mask
        runs += [
            _Run(text=cell.label, cell=index, start=low, size=high - low)
            for low, high in ranges(cell.mask & every)
        ]
    runs += [_Run(text=_FREE, cell=None, start=low, size=high - low) for low, high in ranges(free)]
    return sorted(runs, key=lambda run: run.start)


def _edges(runs: Sequence[_Run], units: int, width: int) -> tuple[list[int], bool]:
    """Return the columns of the borders, and whether they are to scale."""
    scale = [run.start * (width - 1) // units for run in runs] + [width - 1]
    if all(high - low >= _NARROWEST for low, high in itertools.pairwise(scale)):
        return scale, (width - 1) // units >= _NARROWEST
    room = max(width - 1 - _NARROWEST * len(runs), 0)
    edges = [run.start * room // units + _NARROWEST * i for i, run in enumerate(runs)]
    return [*edges, room + _NARROWEST * len(runs)], False


def _texts(
    runs: Sequence[_Run], edges: Sequence[int], cells: Sequence[Cell]
) -> tuple[list[str], list[tuple[str, str]]]:
    """Fit each label into its box; give those that do not fit a key."""
    widths = [high - low - 1 for low, high in itertools.pairwise(edges)]
    tight = {
        run.cell
        for run, width in zip(runs, widths, strict=True)
        if run.cell is not None and columns(run.text) > width
    }
    keys = {cell: _key(number) for number, cell in enumerate(sorted(tight))}
    texts = [
        centred((run.text if run.cell not in tight else keys[run.cell])[:width], width)
        for run, width in zip(runs, widths, strict=True)
    ]
    return texts, [(key, cells[cell].label) for cell, key in keys.items()]


def _key(number: int) -> str:
    """Return a, b, ... z, aa, ab, ...: two letters are the most that the narrowest box holds."""
    first, last = divmod(number, 26)
    letter = chr(ord("a") + last)
    return letter if first == 0 else chr(ord("a") + first - 1) + letter


def _painted(text: str, cell: int | None, *, colour: bool) -> str:
    if not colour:
        return text
    code = "2" if cell is None else f"30;{_PALETTE[cell % len(_PALETTE)]}"
    return f"\x1b[{code}m{text}\x1b[0m"


def _rule(edges: Sequence[int], border: str, corners: Sequence[str]) -> str:
    left, between, right = corners
    widths = [high - low - 1 for low, high in itertools.pairwise(edges)]
    return left + between.join(border * width for width in widths) + right


def _numbers(units: int, width: int) -> str:
    line = ""
    for unit in range(units):
        line = line.ljust(unit * (width - 1) // units + 1) + str(unit)
    return line


def _layers(spans: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    layers: list[list[tuple[int, int]]] = []
    for start, size in sorted(spans):
        for layer in layers:
            if sum(layer[-1]) <= start:
                layer.append((start, size))
                break
        else:
            layers.append([(start, size)])
    return layers


def _span_line(
    units: int, spans: Sequence[tuple[int, int]], unit_width: int, *, boxes: bool
) -> str:
    left, line, right = "├─┤" if boxes else "[=]"
    drawn = dict(spans)
    text, unit = "", 0
    while unit < units:
        size = drawn.get(unit, 0)
        text += left + line * (size * unit_width - 3) + right + " " if size else " " * unit_width
        unit += size or 1
    return text
