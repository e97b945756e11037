"""`apportion gpu`: boards that MIG can split, their profiles and placements; a GPU's calendar."""

import argparse
import sys
from collections.abc import Mapping, Sequence

from apportion.cli.calendar_text import add_gpu_calendar_arguments, run_gpu_calendar
from apportion.cli.draw import can_draw_boxes, draw_spans
from apportion.cli.output import add_output_argument, print_data, table
from apportion.errors import InvalidInputError
from apportion.geometry import Board, Profile, boards, find_board
from apportion.quantities.units import bits

_EXAMPLES = """\
examples:
  apportion gpu list --family H100
  apportion gpu show "NVIDIA H100 80GB HBM3"
  apportion gpu show a100-sxm4-40gb -o json
  apportion gpu calendar GPU-3f5c... --until 'friday 18:00'"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `list`, `show` and `calendar`."""
    parser.epilog = _EXAMPLES
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="list|show|calendar")
    listing = verbs.add_parser("list", help="list the boards that MIG can split", epilog=_EXAMPLES)
    listing.add_argument("--family", help="only boards of this family, such as H100")
    add_output_argument(listing)
    show = verbs.add_parser(
        "show", help="show a board's profiles and where each may lie", epilog=_EXAMPLES
    )
    show.add_argument("model", metavar="MODEL", help="a device name or a key of `gpu list`")
    add_output_argument(show)
    calendar = verbs.add_parser(
        "calendar", help="show when a server's GPU is held, and by whom", epilog=_EXAMPLES
    )
    add_gpu_calendar_arguments(calendar)


def run(args: argparse.Namespace) -> int:
    """Print the boards, one board, or a GPU's calendar; 0, or InvalidInputError."""
    if args.verb == "calendar":
        return run_gpu_calendar(args)
    if args.verb == "list":
        _list(_of_family(args.family), args.output)
    else:
        _show(find_board(args.model, field="MODEL"), args.output)
    return 0


def _of_family(family: str | None) -> Sequence[Board]:
    known = boards()
    if family is None:
        return known
    found = [board for board in known if board.family.lower() == family.strip().lower()]
    if not found:
        raise InvalidInputError(
            "no board that MIG can split is of this family",
            field="--family",
            given=family,
            allowed=", ".join(dict.fromkeys(board.family for board in known)),
        )
    return found


def _list(found: Sequence[Board], output: str) -> None:
    if output != "table":
        print_data({"gpus": [_board_data(board) for board in found]}, output)
        return
    headers = ("key", "family", "model", "GB", "compute", "memory", "profiles", "placements")
    rows = [
        (
            board.key,
            board.family,
            board.model,
            board.nominal_gb,
            board.compute_slices,
            board.memory_slices,
            len(board.profiles),
            _certainty(board),
        )
        for board in found
    ]
    sys.stdout.write(table(headers, rows) + "\n")


def _certainty(board: Board) -> str:
    """Say in a word or two whether the placements were seen on hardware."""
    if not board.placements_known:
        return "unknown"
    basis = board.placement_basis.partition(" (")[0]
    return basis if basis.startswith("observed") else "inferred"


def _show(board: Board, output: str) -> None:
    if output != "table":
        data = _board_data(board)
        data["profiles"] = [_profile_data(profile) for profile in board.profiles]
        data["notes"] = board.notes
        print_data(data, output)
        return
    memory = f"{board.memory_slices} memory slices" if board.ruler else "memory slices unknown"
    lines = [
        f"{board.model} ({board.key}), family {board.family}",
        f"{board.compute_slices} compute slices, {memory}; placements: {board.placement_basis}",
        "",
        table(
            ("profile", "id", "compute", "memory", "MiB", "share", "most"),
            [_profile_row(profile) for profile in board.profiles],
        ),
        "",
        *_picture(board),
        *(f"note: {note}" for note in board.notes),
    ]
    sys.stdout.write("\n".join(lines) + "\n")


def _profile_row(profile: Profile) -> tuple[object, ...]:
    return (
        profile.name,
        profile.id,
        profile.compute_slices,
        profile.memory_slices,
        profile.memory_mib,
        profile.share,
        profile.max_instances,
    )


def _picture(board: Board) -> list[str]:
    if board.ruler is None:
        return ["geometry unknown: no source lists where these profiles may lie"]
    rows = [
        (profile.name, [(p.start, p.size) for p in profile.placements], _engines(board, profile))
        for profile in board.profiles
    ]
    return draw_spans(board.ruler.memory_units, rows, boxes=can_draw_boxes())


def _engines(board: Board, profile: Profile) -> str:
    """Name the scarce engines that an instance of the profile takes."""
    ruler = board.known_ruler()
    engines = ruler.mask & ~ruler.memory_mask
    return ", ".join(ruler.names[unit] for unit in bits(profile.placements[0].mask & engines))


def _board_data(board: Board) -> dict[str, object]:
    return {
        "key": board.key,
        "model": board.model,
        "family": board.family,
        "architecture": board.architecture,
        "memory_gb": board.nominal_gb,
        "memory_total_mib": board.memory_total_mib,
        "compute_slices": board.compute_slices,
        "memory_slices": board.memory_slices,
        "max_instances": board.max_instances,
        "placements_known": board.placements_known,
        "placement_basis": board.placement_basis,
        "mode_change_needs_reset": board.mode_change_needs_reset,
        "mode_survives_reboot": board.mode_survives_reboot,
        "pci_device_ids": board.pci_device_ids,
        "ruler": board.ruler.names if board.ruler else None,
        "profiles": [profile.name for profile in board.profiles],
    }


def _profile_data(profile: Profile) -> Mapping[str, object]:
    engines = profile.engines
    return {
        "name": profile.name,
        "id": profile.id,
        "compute_slices": profile.compute_slices,
        "memory_slices": profile.memory_slices,
        "memory_mib": profile.memory_mib,
        "share": profile.share,
        "max_instances": profile.max_instances,
        "sm": profile.sm,
        "engines": {
            "copy_engines": engines.copy_engines,
            "decoders": engines.decoders,
            "encoders": engines.encoders,
            "jpeg": engines.jpeg,
            "ofa": engines.ofa,
        },
        "placements": [
            {"start": p.start, "size": p.size, "units": list(bits(p.mask))}
            for p in profile.placements
        ],
    }
