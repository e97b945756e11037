"""``apportion pack``: asks on whole GPUs, a picture of each, and why the rest does not fit."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from fractions import Fraction
from typing import Final

from apportion.cli.arguments import (
    MIG_UNSAID,
    add_ask_limits,
    add_capability_arguments,
    capabilities,
    is_model_assumed,
    whole_number,
)
from apportion.cli.draw import Cell, can_draw_boxes, draw_gpu
from apportion.cli.output import add_output_argument, print_data, wants_colour
from apportion.errors import InvalidInputError
from apportion.planning.asks import parse_ask
from apportion.planning.capabilities import ASSUMED_MODEL, ClusterGpuCaps
from apportion.planning.isolation import Mechanism
from apportion.planning.packing import (
    EXACT,
    STRATEGIES,
    PackedGpu,
    PackResult,
    PlacedAsk,
    Proof,
    bin_pack,
)
from apportion.quantities.shares import exact_text
from apportion.quantities.units import span

_EXAMPLES = """examples:
  apportion pack --ask a:0.5 --ask b:0.3 --ask c:0.4 --gpus 2 --timeslice
  apportion pack --ask a:3g.20gb --ask b:3g.20gb --ask c:1g.5gb --gpus 1 --mig-capable
  apportion pack --ask a:1g.5gb --ask b:4g.20gb --gpus 9 --mig-capable --strategy exact
  apportion pack --ask db:20Gi --ask web:2slots --ask train:2 --gpus 4 --mps --slots-per-gpu 4

exit codes: 0 everything is placed, 1 something is not (with the reasons), 2 bad input"""

_FINE: Final = 10_000  # units of the picture of a GPU that is shared in free shares


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "--ask",
        action="append",
        required=True,
        metavar="LABEL:WHAT",
        help="an ask (again for more): a:0.5, a:1/7, a:2g.10gb, a:20Gi, a:2slots, a:2 (whole GPUs)",
    )
    parser.add_argument("--gpus", type=whole_number, required=True, metavar="N", help="empty GPUs")
    parser.add_argument(
        "--strategy",
        choices=STRATEGIES,
        default="ffd",
        help="ffd: the first GPU with room (default); best: the one left with the least; "
        "exact: provably the fewest GPUs (needs the extra: pip install 'apportion[exact]')",
    )
    parser.add_argument(
        "--time-limit",
        metavar="DURATION",
        help="how long exact may search, such as 1m (default: 10s); then the best found is given",
    )
    add_ask_limits(parser)
    add_capability_arguments(parser)
    add_output_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Pack and print; 1 where something is not placed."""
    caps = capabilities(args)
    asks = [
        parse_ask(text, field="--ask", isolation=args.isolation, allow_larger=args.allow_larger)
        for text in args.ask
    ]
    limit = None if args.time_limit is None else _time_limit(args.time_limit, args.strategy)
    result = bin_pack(asks, args.gpus, caps, strategy=args.strategy, time_limit=limit)
    if args.output == "table":
        lines = _report(result, caps)
        if args.pool is None and any(entry.code == "no_mig" for entry in result.unplaced):
            lines.append(MIG_UNSAID)
        if is_model_assumed(asks, caps):
            lines.append(f"no --gpu-model given: {ASSUMED_MODEL} assumed")
        sys.stdout.write("\n".join(lines) + "\n")
    else:
        print_data(_document(result, caps, args.strategy), args.output)
    return 1 if result.unplaced else 0


def _time_limit(text: str, strategy: str) -> timedelta:
    if strategy != EXACT:
        raise InvalidInputError(
            "only the strategy exact searches",
            field="--time-limit",
            given=text,
            allowed=f"with --strategy {EXACT}",
        )
    from apportion.quantities.windows import parse_duration

    return parse_duration(text, field="--time-limit")


def _report(result: PackResult, caps: ClusterGpuCaps) -> list[str]:
    """Draw each used GPU, count the rest, and say of each unplaced ask why."""
    used = [gpu for gpu in result.gpus if gpu.placed]
    lines: list[str] = []
    for gpu in used:
        rest = ((gpu.free_share, _free(gpu)), (gpu.stranded_share, "stranded"))
        words = "".join(f", {exact_text(share)} {word}" for share, word in rest if share)
        lines.append(f"GPU {gpu.index}: {gpu.mechanism}{words}")
        units, cells = _cells(gpu, caps)
        lines += draw_gpu(units, cells, colour=wants_colour(), boxes=can_draw_boxes())
    lines.append(f"{len(used)} of {len(result.gpus)} GPUs used{_proven(result.proof)}")
    if result.unplaced:
        lines.append(f"not placed ({len(result.unplaced)}):")
        lines += [f"  {entry.label}: {entry.reason}" for entry in result.unplaced]
    return lines


def _free(gpu: PackedGpu) -> str:
    """Say beside what is free of instances the largest that fits: a sum alone promises too much."""
    if gpu.mechanism is not Mechanism.MIG:
        return "free"
    return f"free (the largest that fits: {gpu.largest_profile or 'none'})"


def _proven(proof: Proof | None) -> str:
    if proof is None:
        return ""
    return ": optimal" if proof.optimal else f": best found, at least {proof.bound}"


def _cells(gpu: PackedGpu, caps: ClusterGpuCaps) -> tuple[int, list[Cell]]:
    """Give the units of the picture (memory slices, slots, or a fine scale) and what sits there."""
    if gpu.mechanism is Mechanism.MIG:
        return caps.board.known_ruler().memory_units, _spans(gpu.placed)
    if gpu.mechanism is Mechanism.WHOLE:
        return 1, [Cell(label=gpu.placed[0].label, mask=1)]
    if caps.slots_per_gpu is not None:
        return caps.slots_per_gpu, _spans(gpu.placed)
    cells: list[Cell] = []
    end = Fraction(0)
    for placed in gpu.placed:
        low = int(end * _FINE)
        end += placed.share
        size = max(int(end * _FINE) - low, 1)  # a very small share must not vanish
        cells.append(Cell(label=f"{placed.label} {exact_text(placed.share)}", mask=span(low, size)))
    return _FINE, cells


def _spans(placed: Sequence[PlacedAsk]) -> list[Cell]:
    return [
        Cell(
            label=" ".join(filter(None, (entry.label, entry.mig_profile))),
            mask=span(entry.start or 0, entry.size or 0),
        )
        for entry in placed
    ]


def _document(result: PackResult, caps: ClusterGpuCaps, strategy: str) -> Mapping[str, object]:
    return {
        "strategy": strategy,
        "gpu_model": caps.gpu_model or ASSUMED_MODEL,
        "gpu_model_assumed": caps.gpu_model is None,
        "gpus": [
            {
                "index": gpu.index,
                "mechanism": gpu.mechanism,
                "placed": [_placed(entry) for entry in gpu.placed],
                "free": gpu.free_share,
                "largest_profile": gpu.largest_profile,
                "stranded": gpu.stranded_share,
            }
            for gpu in result.gpus
        ],
        "gpus_used": result.gpus_used,
        **_proof(result.proof),
        "unplaced": [
            {"label": entry.label, "code": entry.code, "reason": entry.reason}
            for entry in result.unplaced
        ],
    }


def _proof(proof: Proof | None) -> Mapping[str, object]:
    return {} if proof is None else {"optimal": proof.optimal, "bound": proof.bound}


def _placed(entry: PlacedAsk) -> Mapping[str, object]:
    document: dict[str, object] = {"label": entry.label, "share": entry.share}
    if entry.mig_profile is not None:
        document["mig_profile"] = entry.mig_profile
    if entry.start is not None:
        document |= {"start": entry.start, "size": entry.size}
    return document
