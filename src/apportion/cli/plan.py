"""``apportion plan``: how one ask is met, what stands between the sharers, and what it wastes."""

import argparse
import sys
from collections.abc import Mapping
from fractions import Fraction

from apportion.cli.arguments import (
    MIG_UNSAID,
    add_ask_limits,
    add_capability_arguments,
    capabilities,
    is_model_assumed,
    whole_number,
)
from apportion.cli.output import add_output_argument, print_data
from apportion.errors import InvalidInputError, InvalidStateError
from apportion.planning.asks import FractionalAsk
from apportion.planning.capabilities import ASSUMED_MODEL, ClusterGpuCaps
from apportion.planning.mechanisms import MechanismChoice, select_mechanism
from apportion.quantities.shares import decimal_text, percent_text

_EXAMPLES = """examples:
  apportion plan JPCP --fraction 0.25                  a whole GPU, with the waste stated
  apportion plan JPCP --fraction 0.25 --mig-capable    the smallest MIG profile with that much
  apportion plan JPCP --mig 2g.10gb --mig-capable --for slurm
  apportion plan JPCP --memory 20Gi --timeslice --record --job-id 4711 --seconds 7200
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.epilog = _EXAMPLES
    parser.add_argument("label", metavar="LABEL", help="what the ask is for")
    form = parser.add_argument_group("the ask (one of them; without any, one whole GPU)")
    one = form.add_mutually_exclusive_group()
    one.add_argument("--fraction", metavar="F", help="a part of a GPU's compute: 0.25, 1/7, 500m")
    one.add_argument("--mig", metavar="PROFILE", help="a MIG profile: 2g.10gb, 1g.24gb+me")
    one.add_argument("--memory", metavar="SIZE", help="an amount of GPU memory: 20Gi, 20GB")
    one.add_argument("--slots", type=whole_number, metavar="N", help="slots of one GPU")
    one.add_argument("--gpus", type=whole_number, metavar="N", help="whole GPUs")
    add_ask_limits(parser)
    add_capability_arguments(parser)
    _add_record_arguments(parser)
    parser.add_argument(
        "--for",
        dest="target",
        choices=("slurm", "kubernetes"),
        help="print the matching gres or shard line, or limits and a ResourceClaim",
    )
    add_output_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Plan, record if asked to, print."""
    caps = capabilities(args)
    ask = FractionalAsk(
        args.label,
        args.fraction,
        mig_profile=args.mig,
        memory=args.memory,
        slots=args.slots,
        gpus=args.gpus,
        isolation=args.isolation,
        allow_larger=args.allow_larger,
    )
    _check_record_arguments(args)
    try:
        choice = select_mechanism(ask, caps)
    except InvalidStateError as error:
        if error.details["reason"] == "no_mig" and args.pool is None:
            error.hint = MIG_UNSAID
        raise
    rendered = _render(args.target, choice, caps, ask.label)
    if args.record:
        _record(args, choice)
    if args.output == "table":
        lines = [*_sentences(ask, choice, caps), *(["", rendered] if rendered else [])]
        sys.stdout.write("\n".join(lines) + "\n")
    else:
        print_data(_document(ask, choice, caps, rendered), args.output)
    return 0


def _sentences(ask: FractionalAsk, choice: MechanismChoice, caps: ClusterGpuCaps) -> list[str]:
    assumed = f"no --gpu-model given: {ASSUMED_MODEL} assumed"
    return choice_lines(ask.label, choice, assumed if is_model_assumed([ask], caps) else None)


def choice_lines(label: str, choice: MechanismChoice, remark: str | None = None) -> list[str]:
    """Write the choice for people: what it is, why, and what it wastes."""
    what = " ".join(filter(None, (choice.mechanism, choice.mig_profile)))
    amount = _amount(choice.allocated_fraction)
    lines = [f"{label}: {what} (isolation: {choice.isolation}) — {amount} GPU", f"  {choice.note}"]
    if remark is not None:
        lines.append(f"  {remark}")
    if choice.wasted_fraction:
        wasted = percent_text(choice.wasted_fraction)
        cause = "this fallback" if choice.is_fallback else "what cannot be split finer"
        lines.append(f"  ⚠ {wasted} GPU capacity wasted by {cause}.")
    return lines


def _amount(share: Fraction) -> str:
    """Write two decimals where they are exact, else the fraction itself."""
    return decimal_text(share, 2) if (share * 100).denominator == 1 else str(share)


def _document(
    ask: FractionalAsk, choice: MechanismChoice, caps: ClusterGpuCaps, rendered: str | None
) -> Mapping[str, object]:
    document: dict[str, object] = {
        "label": ask.label,
        **choice_data(choice),
        "gpu_model": caps.gpu_model or ASSUMED_MODEL,
        "gpu_model_assumed": caps.gpu_model is None,
    }
    if rendered is not None:
        document["rendered"] = rendered
    return document


def choice_data(choice: MechanismChoice) -> Mapping[str, object]:
    """Give the choice's fields for a program."""
    return {
        "mechanism": choice.mechanism,
        "isolation": choice.isolation,
        "mig_profile": choice.mig_profile,
        "slots": choice.slots,
        "requested": choice.requested_fraction,
        "allocated": choice.allocated_fraction,
        "wasted": choice.wasted_fraction,
        "note": choice.note,
    }


def _render(
    target: str | None, choice: MechanismChoice, caps: ClusterGpuCaps, label: str
) -> str | None:
    if target is None:
        return None
    from apportion.planning.render import kubernetes_manifest, slurm_options

    if target == "slurm":
        return "\n".join(slurm_options(choice, caps))
    return kubernetes_manifest(choice, label).rstrip("\n")


def _add_record_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("recording (see apportion accounting)")
    group.add_argument("--record", action="store_true", help="record the choice for accounting")
    group.add_argument("--job-id", metavar="ID", help="the job (default: the label)")
    group.add_argument("--attempt", type=whole_number, metavar="N", help="its attempt (default: 1)")
    group.add_argument(
        "--seconds", metavar="S", help="how long it ran; may be recorded later, and only once"
    )
    group.add_argument("--records", metavar="FILE", help="where (default: the state directory)")


def _check_record_arguments(args: argparse.Namespace) -> None:
    """Refuse details of a record that is not to be made: they would be dropped in silence."""
    given = {
        "--job-id": args.job_id,
        "--attempt": args.attempt,
        "--seconds": args.seconds,
        "--records": args.records,
    }
    stray = [flag for flag, value in given.items() if value is not None]
    if stray and not args.record:
        raise InvalidInputError(
            "means something only together with --record", field=stray[0], allowed="--record"
        )


def _record(args: argparse.Namespace, choice: MechanismChoice) -> None:
    from apportion.cli import records
    from apportion.planning.accounting import record_of

    record = record_of(
        choice,
        label=args.label,
        job_id=args.label if args.job_id is None else args.job_id,
        attempt=1 if args.attempt is None else args.attempt,
        seconds=args.seconds,
    )
    records.add(records.path_of(args.records), record)
