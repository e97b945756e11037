"""Write a choice in the words of Slurm and of Kubernetes. Pure text; nothing is submitted.

Slurm: the ``--gres`` of gres.conf(5): ``gpu:TYPE:N`` for whole GPUs and MIG instances, ``mps:N`` in
hundredths of a GPU, ``shard:N``. Kubernetes: the resource limits of NVIDIA's device plugin, and a
ResourceClaim (``resource.k8s.io/v1``) for NVIDIA's DRA driver.
"""

import re
from math import ceil
from typing import Final

from apportion.geometry import parse_device_name
from apportion.planning.capabilities import ASSUMED_MODEL, MPS_UNITS, ClusterGpuCaps
from apportion.planning.isolation import Mechanism
from apportion.planning.mechanisms import MechanismChoice

_SHARDS: Final = 100  # per GPU, where the cluster names no count of its own


def slurm_options(choice: MechanismChoice, caps: ClusterGpuCaps) -> tuple[str, ...]:
    """Give the ``#SBATCH`` line for a choice, after a comment on what gres.conf must say."""
    count = int(choice.allocated_fraction)
    if choice.mechanism is Mechanism.WHOLE:
        kind = "" if caps.gpu_model is None else f"{_family(caps)}:"
        return (f"#SBATCH --gres=gpu:{kind}{count}",)
    if choice.mechanism is Mechanism.MIG:
        kind = f"{_family(caps)}_{choice.mig_profile}"
        return (
            f"# gres.conf: Name=gpu Type={kind}, one a MIG instance (Slurm makes none itself)",
            f"#SBATCH --gres=gpu:{kind}:1",
        )
    if choice.mechanism is Mechanism.MPS:
        units = ceil(choice.allocated_fraction * MPS_UNITS)
        return (
            f"# gres.conf: Name=mps Count={MPS_UNITS} for each GPU",
            f"#SBATCH --gres=mps:{units}",
        )
    total = caps.slots_per_gpu or caps.shares_per_gpu or _SHARDS
    shards = choice.slots or ceil(choice.allocated_fraction * total)
    return (
        f"# gres.conf: Name=shard Count={total} for each GPU (shards fence neither memory nor SMs)",
        f"#SBATCH --gres=shard:{shards}",
    )


def kubernetes_manifest(choice: MechanismChoice, label: str) -> str:
    """Give two YAML documents: a container's resource limits, or else a ResourceClaim."""
    resource, count, remark = _limit(choice)
    lines = [
        f"# a container's limits, with NVIDIA's device plugin{remark}",
        "resources:",
        "  limits:",
        f"    {resource}: {count}",
        "---",
        "# or a claim, with NVIDIA's DRA driver",
        "apiVersion: resource.k8s.io/v1",
        "kind: ResourceClaim",
        "metadata:",
        f"  name: {_dns_label(label)}",
        "spec:",
        "  devices:",
        "    requests:",
        "    - name: gpu",
        "      exactly:",
        *_exactly(choice, count),
        *_sharing(choice),
    ]
    return "\n".join(lines) + "\n"


def _limit(choice: MechanismChoice) -> tuple[str, int, str]:
    """Give resource name, count, and what a reader must know about them."""
    if choice.mechanism is Mechanism.WHOLE:
        return "nvidia.com/gpu", int(choice.allocated_fraction), ""
    if choice.mechanism is Mechanism.MIG:
        # A resource name cannot hold "+": the plugin writes "." and keeps "-", so +me is not -me.
        return f"nvidia.com/mig-{(choice.mig_profile or '').replace('+', '.')}", 1, ""
    return "nvidia.com/gpu.shared", 1, " (one replica; more of them give no larger share)"


def _exactly(choice: MechanismChoice, count: int) -> list[str]:
    if choice.mechanism is Mechanism.MIG:
        expression = f"device.attributes['gpu.nvidia.com'].profile == '{choice.mig_profile}'"
        return [
            "        deviceClassName: mig.nvidia.com",
            f"        count: {count}",
            "        selectors:",
            "        - cel:",
            f'            expression: "{expression}"',
        ]
    return ["        deviceClassName: gpu.nvidia.com", f"        count: {count}"]


def _sharing(choice: MechanismChoice) -> list[str]:
    """Give the driver's sharing parameters; pods share the GPU by naming the one claim."""
    if choice.mechanism is Mechanism.MPS:
        percent = ceil(choice.allocated_fraction * MPS_UNITS)
        strategy = [
            "            strategy: MPS",
            "            mpsConfig:",
            f"              defaultActiveThreadPercentage: {percent}",
        ]
    elif choice.mechanism is Mechanism.TIMESLICE:
        strategy = [
            "            strategy: TimeSlicing",
            "            timeSlicingConfig:",
            "              interval: Default",
        ]
    else:
        return []
    return [
        "    config:",
        "    - requests: [gpu]",
        "      opaque:",
        "        driver: gpu.nvidia.com",
        "        parameters:",
        "          apiVersion: resource.nvidia.com/v1beta1",
        "          kind: GpuConfig",
        "          sharing:",
        *strategy,
    ]


def _family(caps: ClusterGpuCaps) -> str:
    """Give the model's family as a Slurm type: lower case, no spaces."""
    name = caps.gpu_model or ASSUMED_MODEL
    return parse_device_name(name).family.lower().replace(" ", "_")


def _dns_label(text: str) -> str:
    """Make a Kubernetes object name of a label: lower case, digits and dashes, at most 63."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:63].strip("-") or "gpu"
