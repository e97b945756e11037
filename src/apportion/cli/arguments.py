"""Flags that planning commands share, and whole numbers read strictly."""

import argparse
from collections.abc import Sequence
from typing import Final

from apportion.errors import InvalidInputError
from apportion.planning.asks import FractionalAsk
from apportion.planning.capabilities import ASSUMED_MODEL, ClusterGpuCaps

_LONGEST = 18


def whole_number(text: str) -> int:
    """Read ASCII digits only: Python's own int() takes ``1_0`` and Arabic digits as numbers."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"must be a whole number such as 4 (given: {text[:60]!r})")
    if len(text) > _LONGEST:
        raise argparse.ArgumentTypeError(f"is too large (given: {text[:60]!r})")
    return int(text)


MIG_UNSAID: Final = "Where MIG can split them, say so: --mig-capable"
"""What helps where a MIG profile is asked of GPUs of which nobody said that they have any."""


def add_ask_limits(parser: argparse.ArgumentParser) -> None:
    """Add what an ask insists on."""
    parser.add_argument(
        "--isolation",
        metavar="LEAST",
        help="exclusive, hardware or soft: nothing weaker is accepted (default: soft)",
    )
    parser.add_argument(
        "--allow-larger",
        action="store_true",
        help="let something larger stand in for a named MIG profile that is not on offer",
    )


def add_capability_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the GPUs can do: by flags, or read from a server's pool."""
    group = parser.add_argument_group("what the GPUs can do")
    group.add_argument("--mig-capable", action="store_true", help="MIG can split them")
    group.add_argument(
        "--mig-profile",
        action="append",
        metavar="PROFILE",
        help="a MIG profile on offer (again for more; without any: all that the board has)",
    )
    group.add_argument("--mps", action="store_true", help="MPS can share them (soft isolation)")
    group.add_argument(
        "--timeslice", action="store_true", help="time slicing can share them (soft isolation)"
    )
    group.add_argument(
        "--slots-per-gpu",
        type=whole_number,
        metavar="N",
        help="fixed slots a GPU (1 to 48); without it a shared GPU is split exactly as asked",
    )
    group.add_argument(
        "--gpu-model",
        metavar="MODEL",
        help=f"the GPUs' model, as NVML or people write it (default: {ASSUMED_MODEL} is assumed)",
    )
    group.add_argument("--pool", help="read all of this from a pool of the server instead")


def capabilities(args: argparse.Namespace) -> ClusterGpuCaps:
    """Give the capabilities that the flags say, or those of the pool that they name."""
    flags = {
        "--mig-capable": args.mig_capable,
        "--mig-profile": args.mig_profile,
        "--mps": args.mps,
        "--timeslice": args.timeslice,
        "--slots-per-gpu": args.slots_per_gpu,
        "--gpu-model": args.gpu_model,
    }
    if args.pool is not None:
        given = [flag for flag, value in flags.items() if value]
        if given:
            raise InvalidInputError(
                "the pool itself says what its GPUs can do",
                field="--pool",
                given=" and ".join(("--pool", *given)),
                allowed="--pool alone",
            )
        from apportion.cli.server_caps import pool_capabilities

        return pool_capabilities(args.pool)
    caps = ClusterGpuCaps(
        supports_mig=args.mig_capable or bool(args.mig_profile),
        supports_mps=args.mps,
        supports_timeslice=args.timeslice,
        mig_profiles=args.mig_profile,
        slots_per_gpu=args.slots_per_gpu,
        gpu_model=args.gpu_model,
    )
    _check_model(caps)
    return caps


def is_model_assumed(asks: Sequence[FractionalAsk], caps: ClusterGpuCaps) -> bool:
    """Tell whether the answer rests on a GPU model that nobody named, which has to be said."""
    return caps.gpu_model is None and (
        caps.supports_mig or any(ask.memory is not None for ask in asks)
    )


def _check_model(caps: ClusterGpuCaps) -> None:
    """Refuse a bad model or profile even where the answer would not depend on it."""
    if caps.supports_mig:
        _ = caps.offered
    elif caps.gpu_model is not None:
        from apportion.geometry.device_names import parse_device_name

        parse_device_name(caps.gpu_model)
