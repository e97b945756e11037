"""From what a node reports to what can be booked: pure.

A GPU in MIG mode is an unbookable parent and one ``gpu.mig`` atom per instance, whatever the
pool's mode; in a time-sliced or MPS pool a GPU that is not in MIG mode is an unbookable parent
and its slots, or one atom of free shares; any other GPU is itself the atom. A GPU whose MIG mode
is changing has nothing to book until it has changed.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Final

from apportion.errors import InvalidInputError
from apportion.geometry import Board, Placement, Profile, find_board, parse_profile
from apportion.nodes import on_demand
from apportion.nodes.schemas import DriverProfile, GpuReport, MigInstance
from apportion.nodes.specs import AtomSpec, Attributes, GpuSpec, atom_key
from apportion.pools.policy import DYNAMIC, PoolPolicy, mps_units
from apportion.quantities.units import WHOLE, span, to_multirange

PARTITION_PENDING: Final = "partitionPending"
NOT_CONVERGED: Final = "spec_not_converged"
NOT_CHECKED: Final = "acceptance_pending"
NOT_PASSED: Final = "acceptance_failed"
SPLIT: Final = "split"


def identify(report: GpuReport) -> Board | None:
    """Return the GPU's board, or None where the name does not tell which it is."""
    return _board(report.product, report.memory_mib, report.pci_device_id)


# A fleet has few products and many GPUs, and a name that no board has is compared with all of them.
@lru_cache(maxsize=256)
def _board(product: str, memory_mib: int | None, pci_device_id: str | None) -> Board | None:
    try:
        return find_board(product, memory_mib=memory_mib, pci_device_id=pci_device_id)
    except InvalidInputError:
        return None


def derive(
    report: GpuReport,
    board: Board | None,
    *,
    node: str,
    model: str,
    sharing: str,
    policy: PoolPolicy,
    awaits: str | None,
    told: on_demand.Told,
) -> GpuSpec:
    """Derive a GPU's split and atoms from its report and its pool's mode.

    ``awaits``: what a new node has yet to do before it takes work. ``told``: the profiles that the
    node's driver has for the GPU, which win over the table of boards.
    """
    demand = sharing == "mig" and policy.mig_layout == DYNAMIC
    split = "mig" if demand else _split(report, sharing, policy)
    common = _common(report, node, model, sharing)
    parent_reason = None if split == "none" else SPLIT
    keeps_mode = board is not None and on_demand.keeps_its_mode(board, policy.mode_change)
    if demand and board is not None and board.ruler is not None:
        parent_reason = on_demand.why_not_whole(report, keeps_mode=keeps_mode)
    parent = AtomSpec(
        key=report.uuid,
        cls="gpu",
        units=to_multirange(WHOLE),
        share=Fraction(1),
        attributes=common,
        reason=parent_reason,
    )
    match split:
        case "mig":
            parts = tuple(_instances(report, board, sharing, common, told))
            if demand and board is not None:
                parts = on_demand.places(report, board, common, parts, keeps_mode=keeps_mode)
                parts = on_demand.as_told(parts, board, told)
            ruler = board.ruler.units if board is not None and board.ruler is not None else 1
        case "slots":
            ruler = policy.replicas or 1
            parts = tuple(_slots(report, sharing, ruler, common))
        case "shares":
            ruler = policy.shares or 1
            parts = (_shares(report, ruler, common),)
        case _:
            ruler, parts = 1, ()
    reason = _why_nothing(report, board, demand=demand)
    if reason is None:
        reason = awaits
    atoms = (parent, *parts)
    if reason is not None:
        atoms = tuple(replace(atom, reason=reason) for atom in atoms)
    return GpuSpec(
        report=report,
        board=None if board is None else board.key,
        split=split,
        ruler=ruler,
        reason=reason,
        on_demand=demand,
        atoms=atoms,
    )


def _split(report: GpuReport, sharing: str, policy: PoolPolicy) -> str:
    if report.mig.current:
        return "mig"
    if policy.replicas is not None:
        return "slots"
    return "shares" if policy.shares is not None and sharing in ("timeslice", "mps") else "none"


def _why_nothing(report: GpuReport, board: Board | None, *, demand: bool) -> str | None:
    if report.failed is not None:
        return "failed"
    if report.mig.current == report.mig.pending:
        return None
    # Where instances are made on demand we switch the mode ourselves, and that takes a moment.
    quick = demand and board is not None and not board.mode_change_needs_reset
    return None if quick else PARTITION_PENDING


def _common(report: GpuReport, node: str, model: str, sharing: str) -> Attributes:
    attributes: Attributes = {
        "gpuProduct": report.product,
        "gpuModel": model,
        "node": node,
        "gpuUuid": report.uuid,
        "gpuIndex": report.index,
        "sharing": sharing,
    }
    if report.memory_mib is not None:
        # Boards report slightly less than what they are sold as: 81559 MiB is an 80 GiB board.
        attributes["vramGiB"] = -(-report.memory_mib // 1024)
    if report.numa_node is not None:
        attributes["numaNode"] = report.numa_node
    if report.pcie_root is not None:
        attributes["pcieRoot"] = report.pcie_root
    return attributes


def _slots(report: GpuReport, sharing: str, count: int, common: Attributes) -> Iterator[AtomSpec]:
    extra: Attributes = {"slots": count}
    share = Fraction(1, count)
    if sharing == "mps":
        extra["mpsUnits"] = mps_units(count)
        share = Fraction(mps_units(count), 100)
    for slot in range(count):
        yield AtomSpec(
            key=f"{report.uuid}/slot/{slot}",
            cls="gpu.slot",
            units=to_multirange(span(slot, 1)),
            share=share,
            attributes={**common, **extra, "slot": slot},
        )


def _shares(report: GpuReport, count: int, common: Attributes) -> AtomSpec:
    return AtomSpec(
        key=f"{report.uuid}/share",
        cls="gpu.share",
        units=to_multirange(span(0, count)),
        share=Fraction(1),
        attributes={**common, "shares": count},
    )


def _instances(
    report: GpuReport, board: Board | None, sharing: str, common: Attributes, told: on_demand.Told
) -> Iterator[AtomSpec]:
    by_instance: dict[int, list[MigInstance]] = {}
    for instance in report.mig.instances:
        by_instance.setdefault(instance.gi_id, []).append(instance)
    for instances in by_instance.values():
        yield _instance(report, board, sharing, common, instances=instances, told=told)


def _instance(
    report: GpuReport,
    board: Board | None,
    sharing: str,
    common: Attributes,
    *,
    instances: list[MigInstance],
    told: on_demand.Told,
) -> AtomSpec:
    first = instances[0]
    found = None if board is None else _placement(board, first)
    attributes: Attributes = {
        **common,
        "migProfile": profile_text(first.profile),
        "giId": first.gi_id,
    }
    if first.uuid is not None and first.ci_id is not None:
        attributes |= {"ciId": first.ci_id, "migUuid": first.uuid}
    if first.memory_mib is not None:
        attributes["vramGiB"] = -(-first.memory_mib // 1024)
    if found is None or board is None:
        return AtomSpec(
            key=f"{report.uuid}/mig/gi{first.gi_id}",
            cls="gpu.mig",
            units=to_multirange(WHOLE),
            share=Fraction(0),
            attributes=attributes,
            reason="geometry_unknown",
        )
    profile, placement = found
    attributes["migProfile"] = profile.name
    reason = None
    if any(each.failed is not None for each in instances):
        reason = "failed"
    elif first.uuid is None:
        reason = "no_compute_instance"
    elif len(instances) > 1 or _leaves_some_unused(first.profile):
        reason = "compute_instance_smaller_than_gpu_instance"
    elif sharing != "mig":
        reason = "pool_does_not_share_by_mig"
    elif _is_less(first, profile, told.get(profile.name)):
        reason = "delivered_less"
    return AtomSpec(
        key=atom_key(report, profile, placement),
        cls="gpu.mig",
        units=to_multirange(placement.mask),
        share=profile.share,
        attributes=attributes,
        reason=reason,
        board=board.key,
        profile=profile.name,
        start=placement.start,
    )


def instance_profiles(report: GpuReport, board: Board) -> Counter[str]:
    """Count the instances that exist by their profile, each as the board names it.

    One that the board does not have counts under its own name.
    """
    found = {
        instance.gi_id: _placement(board, instance) or instance.profile
        for instance in report.mig.instances
    }
    return Counter(known if isinstance(known, str) else known[0].name for known in found.values())


def _placement(board: Board, instance: MigInstance) -> tuple[Profile, Placement] | None:
    """Find where the instance lies; None where the board has no such profile or placement."""
    try:
        profile = board.profile(_gpu_instance(instance.profile))
    except InvalidInputError:
        return None
    for placement in profile.placements:
        if placement.start == instance.start:
            return profile, placement
    return None


def _is_less(instance: MigInstance, profile: Profile, told: DriverProfile | None) -> bool:
    """Tell whether an instance has less than its profile promises, where both are known.

    What the driver says of the profile counts, where it has. Drivers keep a little memory for
    themselves, each another bit: a sixteenth is no difference.
    """
    sm_count, memory_mib = profile.sm, profile.memory_mib
    if told is not None:
        sm_count, memory_mib = told.sm_count, told.memory_mib
    if instance.sm_count is not None and sm_count is not None and instance.sm_count < sm_count:
        return True
    if instance.memory_mib is None or memory_mib is None:
        return False
    return 16 * instance.memory_mib < 15 * memory_mib


def _gpu_instance(profile: str) -> str:
    """Drop a compute instance's prefix: ``1c.3g.40gb`` lies in a ``3g.40gb``."""
    head, dot, rest = profile.partition(".")
    return rest if dot and head[:-1].isdigit() and head.endswith("c") else profile


def _leaves_some_unused(profile: str) -> bool:
    gpu_instance = _gpu_instance(profile)
    if gpu_instance == profile:
        return False
    return profile.partition("c.")[0] != gpu_instance.partition("g.")[0]


def profile_text(profile: str) -> str:
    """Write a profile as boards name it, where it is one."""
    try:
        return str(parse_profile(profile))
    except InvalidInputError:
        return profile
