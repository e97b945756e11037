"""What a policy's fields must be to each other and to their pool, and what this version can do."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from apportion import plugins
from apportion.errors import ApportionError, InvalidInputError, InvalidStateError
from apportion.geometry import Board, boards, parse_layout
from apportion.pools.policy_fields import PoolPolicy, WindowRule
from apportion.pools.policy_reading import parse, split_problems
from apportion.quantities.windows import format_duration
from apportion.solving import check_installed

DYNAMIC: Final = "dynamic"
"""The layout of a pool whose GPUs are cut as reservations ask."""

_ACCEPTANCE: Final = {"diag.nvml"}
_ATTESTORS: Final = {"join-token"}
_COMPUTE_MODES: Final = {"mps": "exclusiveProcess", "timeslice": "default", "mig": "default"}
"""The one compute mode that a GPU can have where it is shared so."""


def register_acceptance(kind: str) -> None:
    """Add a kind of acceptance check that nodes can run."""
    _ACCEPTANCE.add(kind)


def register_attestor(name: str) -> None:
    """Add somebody who can vouch for machines that join."""
    _ATTESTORS.add(name)


def policy_problems(
    policy: Mapping[str, Any], sharing: str, gpu_model: str
) -> list[ApportionError]:
    """Return everything that is wrong with a policy of such a pool, by itself."""
    read, found = parse(policy)
    return [
        *found,
        *split_problems(policy, sharing),
        *_acceptance_problems(read),
        *_compute_mode_problems(read, sharing),
        *_attestor_problems(read),
        *_window_problems(read.window),
        *_layout_problems(read.mig_layout, sharing, gpu_model),
        *_admission_problems(read),
        *_placement_problems(read),
    ]


def _acceptance_problems(policy: PoolPolicy) -> Iterator[ApportionError]:
    known = _ACCEPTANCE | plugins.names(plugins.ACCEPTANCE)
    for at, step in enumerate(policy.acceptance):
        if step.kind not in known:
            words = "no such check"
        elif step.kind in [each.kind for each in policy.acceptance[:at]]:
            words = "stands there already, and a node has one result for each"
        else:
            continue
        yield InvalidInputError(
            words,
            field=f"policy.acceptance[{at}].kind",
            given=step.kind,
            allowed=", ".join(sorted(known)),
        )


def _compute_mode_problems(policy: PoolPolicy, sharing: str) -> Iterator[ApportionError]:
    """Tell where GPUs cannot be shared in the compute mode that hosts are to have."""
    mode, only = policy.gpu.compute_mode, _COMPUTE_MODES.get(sharing)
    if mode is not None and only not in (None, mode):
        yield InvalidInputError(
            f"{sharing} pools share their GPUs in another mode",
            field="policy.gpu.computeMode",
            given=mode,
            allowed=f"{only}, or left out",
        )


def _attestor_problems(policy: PoolPolicy) -> Iterator[ApportionError]:
    for at, name in enumerate(policy.join_attestors):
        if name not in _ATTESTORS:
            words = "nobody of this name vouches for machines"
        elif name in policy.join_attestors[:at]:
            words = "stands there already"
        else:
            continue
        yield InvalidInputError(
            words,
            field=f"policy.joinAttestors[{at}]",
            given=name,
            allowed=", ".join(sorted(_ATTESTORS)),
        )


def _window_problems(window: WindowRule) -> Iterator[ApportionError]:
    low, high, step = window.minimum, window.maximum, window.step
    if low is not None and high is not None and low > high:
        yield InvalidInputError(
            "is longer than the longest",
            field="policy.window.minimum",
            given=format_duration(low),
            allowed=f"at most {format_duration(high)}, which is policy.window.maximum",
        )
    for name, length in (("minimum", low), ("maximum", high)):
        if step is not None and length is not None and length % step:
            below = length // step * step
            nearest = [each for each in (below, below + step) if each]
            yield InvalidInputError(
                f"no window can last this long in steps of {format_duration(step)}",
                field=f"policy.window.{name}",
                given=format_duration(length),
                allowed=" or ".join(map(format_duration, nearest)),
            )


def _layout_problems(layout: str | None, sharing: str, gpu_model: str) -> Iterator[ApportionError]:
    if layout is None:
        return
    if sharing != "mig":
        yield InvalidInputError(
            f"only mig pools cut their GPUs by a layout, not {sharing} ones",
            field="policy.migLayout",
            given=layout,
            allowed="no migLayout here",
        )
        return
    known = [board for board in boards() if board.family.casefold() == gpu_model.casefold()]
    if not known:
        yield InvalidInputError(
            f"no GPU of the model {gpu_model} is known to be one that MIG can split",
            field="policy.migLayout",
            given=layout,
            allowed=", ".join(sorted({board.family for board in boards()})),
        )
    elif layout != DYNAMIC:
        yield from _impossible_layout(layout, gpu_model, known)


def _impossible_layout(layout: str, gpu_model: str, known: list[Board]) -> Iterator[ApportionError]:
    """Tell why no board of the model can be cut so, unless one can."""
    refusals: list[ApportionError] = []
    for board in known:
        try:
            parse_layout(layout, board, field="policy.migLayout")
        except (InvalidInputError, InvalidStateError) as error:
            refusals.append(error)
        else:
            return
    first = refusals[0]
    profiles = {profile.name: None for board in known for profile in board.profiles}
    yield InvalidInputError(
        first.message,
        field="policy.migLayout",
        given=layout,
        allowed=f"a layout of profiles that {gpu_model} boards have: {', '.join(profiles)}; "
        f"or {DYNAMIC}",
        hint=first.hint,
        details=first.details,
    )


def _admission_problems(policy: PoolPolicy) -> Iterator[ApportionError]:
    if policy.admission.budget_check is not None:
        yield InvalidInputError(
            "metering serves no budgets in this version, so nothing could be admitted by them",
            field="policy.admission.budgetCheck",
            given=policy.admission.budget_check,
            allowed="no budgetCheck; quotas and access policies bound what is admitted",
        )


def _placement_problems(policy: PoolPolicy) -> Iterator[ApportionError]:
    if policy.placement == "exact":
        try:
            check_installed(field="policy.placement")
        except InvalidInputError as error:
            yield error
