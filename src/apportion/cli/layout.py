"""`apportion layout`: what GPUs are cut into: whether a layout can exist, and changing it."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from apportion.cli.draw import Cell, can_draw_boxes, draw_gpu
from apportion.cli.layout_change import VERBS, add_verbs, run_verb
from apportion.cli.output import add_output_argument, print_data, table, wants_colour
from apportion.errors import InvalidInputError
from apportion.geometry import (
    Board,
    Layout,
    MigPartedEntry,
    find_board,
    parse_layout,
    read_mig_parted,
    stranded,
)
from apportion.geometry.layouts import GRAMMAR

_EXAMPLES = f"""\
A layout is {GRAMMAR}.

examples:
  apportion layout check mixed:3g.40gb+2x2g.20gb --gpu-model H100-SXM5-80GB
  apportion layout check all-balanced --gpu-model a30 -o json
  apportion layout check --file mig-parted.yaml
  apportion layout plan notebooks all-1g.10gb
  apportion layout set notebooks all-1g.10gb
  apportion layout status notebooks
  apportion layout cancel notebooks

exit codes: 0 possible or done, 1 impossible (with the reason and the nearest possible) or refused,
2 bad input"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `check`, and the verbs that a server answers."""
    parser.epilog = _EXAMPLES
    metavar = "|".join(("check", *VERBS))
    verbs = parser.add_subparsers(dest="verb", required=True, metavar=metavar)
    check = verbs.add_parser(
        "check", help="check one layout, or a mig-parted file", epilog=_EXAMPLES
    )
    check.add_argument("layout", metavar="LAYOUT", nargs="?", help="such as all-balanced")
    check.add_argument("--file", metavar="FILE", help="a mig-parted configuration file")
    check.add_argument("--gpu-model", metavar="MODEL", help="a device name, or a key of `gpu list`")
    add_output_argument(check)
    add_verbs(verbs.add_parser, _EXAMPLES)


def run(args: argparse.Namespace) -> int:
    """Check, or do what the verb says.

    0 when possible or done, 1 when not, InvalidInputError for what is not a layout or a model.
    """
    if args.verb in VERBS:
        return run_verb(args)
    if (args.layout is None) == (args.file is None):
        raise InvalidInputError("give either LAYOUT or --file", field="LAYOUT")
    board = None if args.gpu_model is None else find_board(args.gpu_model, field="--gpu-model")
    if args.file is not None:
        return _check_file(args.file, board, args.output)
    if board is None:
        raise InvalidInputError(
            "a layout is checked for a board",
            field="--gpu-model",
            allowed="a device name such as A100-SXM4-40GB, or a key of `apportion gpu list`",
        )
    return _check(args.layout, board, args.output)


def _check(text: str, board: Board, output: str) -> int:
    try:
        layout = parse_layout(text, board, field="LAYOUT")
    except InvalidInputError as error:
        if error.details.get("reason") != "impossible_layout":
            raise
        _print_impossible(text, board, error, output)
        return 1
    if output != "table":
        print_data(_layout_data(layout, board), output)
    else:
        _print_lines([f"{text} on {board.model}: possible", *_picture(layout, board)])
    return 0


def _print_impossible(text: str, board: Board, error: InvalidInputError, output: str) -> None:
    name = str(error.details["nearest"])
    nearest = parse_layout(name, board)
    if output != "table":
        data = {
            "layout": text,
            "gpu_model": board.model,
            "board": board.key,
            "possible": False,
            "reason": error.message,
            "nearest": name,
            "nearest_layout": _layout_data(nearest, board),
        }
        print_data(data, output)
        return
    lines = [f"{text} on {board.model}: impossible", f"  {error.message}", f"nearest: {name}"]
    _print_lines([*lines, *_picture(nearest, board)])


def _picture(layout: Layout, board: Board) -> list[str]:
    if not layout.mig_enabled:
        return ["  MIG is off: the GPU is whole"]
    if board.ruler is None:
        return ["  MIG is on, without instances"]
    cells = [Cell(label=p.profile, mask=p.mask) for p in layout.placements]
    lost = stranded(board, layout.mask, compute_used=_compute(layout, board))
    lines = draw_gpu(board.ruler.memory_units, cells, colour=wants_colour(), boxes=can_draw_boxes())
    if lost.memory_slices or lost.compute_slices:
        lines.append(
            f"  stranded: {lost.memory_slices} of {board.memory_slices} memory slices, "
            f"{lost.compute_slices} of {board.compute_slices} compute slices"
        )
    return lines


def _compute(layout: Layout, board: Board) -> int:
    return sum(board.profile(name).compute_slices * n for name, n in layout.counts.items())


def _layout_data(layout: Layout, board: Board) -> Mapping[str, object]:
    lost = None
    if layout.mig_enabled and board.ruler is not None:
        left = stranded(board, layout.mask, compute_used=_compute(layout, board))
        lost = {"memory_slices": left.memory_slices, "compute_slices": left.compute_slices}
    return {
        "layout": layout.name,
        "gpu_model": board.model,
        "board": board.key,
        "possible": True,
        "mig_enabled": layout.mig_enabled,
        "counts": layout.counts,
        "instances": [
            {"profile": p.profile, "start": p.start, "size": p.size} for p in layout.placements
        ],
        "stranded": lost,
    }


def _check_file(path: str, board: Board | None, output: str) -> int:
    entries = read_mig_parted(_text(path))
    if output != "table":
        print_data({"file": path, "entries": [_entry_data(e, board) for e in entries]}, output)
    else:
        headers = ("config", "line", "GPUs", "instances", "verdict")
        lines = [table(headers, [_entry_row(entry, board) for entry in entries])]
        lines += [str(entry.problem) for entry in entries if entry.problem is not None]
        _print_lines(lines)
    return 1 if any(entry.problem is not None for entry in entries) else 0


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise InvalidInputError(
            f"cannot read it: {reason}", field="--file", given=path, allowed="a text file"
        ) from None


def _entry_row(entry: MigPartedEntry, board: Board | None) -> Sequence[object]:
    gpus = "all" if entry.devices is None else ",".join(map(str, entry.devices))
    cut = "+".join(f"{count}x{name}" for name, count in entry.cut.items())
    instances = cut or ("none" if entry.mig_enabled else "MIG off")
    return entry.config, entry.line, gpus, instances, _verdict(entry, board)


def _verdict(entry: MigPartedEntry, board: Board | None) -> str:
    if entry.problem is not None:
        return "impossible"
    if board is None:
        return f"possible on {len(entry.layouts)} boards" if entry.layouts else "board unknown"
    return "possible" if board.key in entry.layouts else "for other boards"


def _entry_data(entry: MigPartedEntry, board: Board | None) -> Mapping[str, object]:
    return {
        "config": entry.config,
        "line": entry.line,
        "devices": "all" if entry.devices is None else entry.devices,
        "device_filter": entry.device_filter,
        "mig_enabled": entry.mig_enabled,
        "counts": entry.cut,
        "verdict": _verdict(entry, board),
        "boards": list(entry.layouts),
        "reason": None if entry.problem is None else entry.problem.message,
        "nearest": None if entry.problem is None else entry.problem.details.get("nearest"),
    }


def _print_lines(lines: Sequence[str]) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
