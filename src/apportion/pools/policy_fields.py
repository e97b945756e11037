"""The policy of a pool: every field that this version knows, its meaning and its limits.

A policy is a JSON object. What is here is read into exact values; the rest is stored as given.
To add a field, add it here and to docs/reference/pool-policy.md, which a test compares with this.
"""

from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Final, Literal, get_args

from pydantic import ConfigDict, Field

from apportion.pools.policy_types import (
    Count,
    CpuSet,
    Duration,
    DurationOrNone,
    Flag,
    LabelKey,
    LabelValue,
    MemoryMib,
    MilliCpu,
    ModuleName,
    OpenSection,
    Ratio,
    Section,
    ShortName,
    Switch,
    Unavailable,
    choice,
    text,
    whole,
)

REPLICAS_MAX: Final = 48
"""The most clients that MPS serves on one GPU."""
SHARES: Final = 100
"""Free shares are hundredths of a GPU."""
PlacementPolicy = Literal["first", "best", "spread", "fragmentation", "exact"]
"""How a place is chosen among several."""
PENDING_DEFAULT: Final = timedelta(hours=24)
RESERVE_DEFAULT: Final = timedelta(hours=1)
HUGEPAGE_SIZES_MIB: Final = {"2Mi": 2, "1Gi": 1024}


class AcceptanceStep(OpenSection):
    """A check that a new machine must pass; parameters beside ``kind`` are those of the kind."""

    model_config = ConfigDict(extra="allow")

    kind: ShortName


class WindowRule(Section):
    """What windows may be asked for: for how long, in which steps, and how long in advance."""

    minimum: Duration | None = Field(default=None, description="The shortest window.")
    maximum: Duration | None = Field(default=None, description="The longest window.")
    step: Duration | None = Field(default=None, description="Windows last a multiple of this.")
    lead: DurationOrNone = Field(
        default=timedelta(0), description="How long before its start a window must be asked for."
    )
    gap: DurationOrNone = Field(
        default=timedelta(0), description="For cleaning up: free time after each holder."
    )
    notice: DurationOrNone = Field(
        default=timedelta(minutes=15), description="How long before an end its tenant is told."
    )


class Rollout(Section):
    """How much of the pool may be away at once while a change rolls over it."""

    max_unavailable: Unavailable = 1


class Overcommit(Section):
    """How many times over a host's scalars are given away."""

    vcpu: Ratio = Decimal(1)
    memory_gib: Ratio = Field(default=Decimal(1), alias="memoryGiB")


class HostReserve(Section):
    """What is kept for the host itself."""

    vcpu: MilliCpu = 0
    memory_gib: MemoryMib = Field(default=0, alias="memoryGiB")


class AdmissionRule(Section):
    """What is asked, beside quota and access policies, before work is let in."""

    budget_check: Annotated[str, choice("meter")] | None = None


class Hugepages(Section):
    """Huge pages that each host sets aside, by size."""

    size_2mi: Count = Field(default=0, alias="2Mi")
    size_1gi: Count = Field(default=0, alias="1Gi")


class Cpu(OpenSection):
    """How a host's CPUs are set up."""

    isolated: CpuSet | None = Field(default=None, description="CPUs kept free of other work.")
    governor: (
        Annotated[str, choice("performance", "powersave", "ondemand", "conservative", "schedutil")]
        | None
    ) = None
    smt: Flag | None = Field(default=None, description="Two threads a core.")


class Gpu(OpenSection):
    """How a host's GPUs are set up."""

    persistence_mode: Flag | None = None
    ecc: Flag | None = None
    compute_mode: Annotated[str, choice("default", "exclusiveProcess", "prohibited")] | None = None
    power_limit_watts: Annotated[int, whole(1, 10_000)] | None = None


class Taint(Section):
    """What keeps other pods away from a host."""

    key: LabelKey
    value: LabelValue = ""
    effect: Annotated[str, choice("NoSchedule", "PreferNoSchedule", "NoExecute")]


class Kubernetes(OpenSection):
    """How a host looks to its Kubernetes cluster."""

    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict, max_length=64)
    taints: list[Taint] = Field(default_factory=list[Taint], max_length=32)


class PoolPolicy(OpenSection):
    """The policy of one pool, read: every default filled in, amounts in exact units."""

    model_config = ConfigDict(title="PoolPolicy")

    acceptance: list[AcceptanceStep] = Field(
        default_factory=list[AcceptanceStep],
        max_length=32,
        description="What a new machine must pass before it takes work.",
    )
    join_attestors: list[ShortName] = Field(
        default=["join-token"],
        min_length=1,
        max_length=32,
        description="Who may vouch for a machine that joins.",
    )
    report_interval: Duration = Field(
        default=timedelta(seconds=10),
        description="How often agents report; a node is stale after three that did not come.",
    )
    max_pending: DurationOrNone = Field(
        default=PENDING_DEFAULT, description="How long what cannot be placed may wait."
    )
    reserve_after: DurationOrNone = Field(
        default=RESERVE_DEFAULT,
        description="How long what waits does so before a start in the future is kept for it.",
    )
    replicas: Annotated[int, whole(1, REPLICAS_MAX)] | None = Field(
        default=None, description="Slots a GPU, in timeslice and mps pools."
    )
    shares: Annotated[int, whole(SHARES, SHARES)] | None = Field(
        default=None, description="Free hundredths instead of slots."
    )
    time_slice: Annotated[str, choice("default", "short", "medium", "long")] | None = Field(
        default=None, description="How long a turn is in a timeslice pool, where drivers can."
    )
    window: WindowRule = WindowRule()
    placement: Annotated[PlacementPolicy, choice(*get_args(PlacementPolicy))] = Field(
        default="fragmentation", description="How a place is chosen where several are free."
    )
    rollout: Rollout = Rollout()
    mode_change: Annotated[str, choice("never", "idle", "reset", "reboot")] = Field(
        default="idle", description="The most that may be done to switch MIG on or off."
    )
    end_grace: DurationOrNone = Field(
        default=timedelta(0),
        description="Between the end of a window and the signal to its holder.",
    )
    mig_layout: Annotated[str, text(r"[!-~]+", "a layout's name, or dynamic")] | None = Field(
        default=None, description="What each GPU of a mig pool is cut into, or dynamic."
    )
    single_tenant: Flag = Field(
        default=False, description="Offered to one tenant besides the owner at most."
    )
    overcommit: Overcommit = Overcommit()
    host_reserve: HostReserve = HostReserve()
    admission: AdmissionRule = AdmissionRule()
    open_ended: Flag = Field(default=False, description="Windows without an end may be asked for.")
    reset_on_release: Flag = Field(
        default=False, description="What is given back has its memory back to where it was."
    )
    preemptible: Flag = Field(
        default=False, description="Reservations may say that they can be moved."
    )
    hugepages: Hugepages | None = Field(
        default=None, description="Huge pages that each host sets aside; else what it reports."
    )
    kernel_modules: list[ModuleName] = Field(
        default_factory=list[str], max_length=64, description="Kernel modules that hosts load."
    )
    cpu: Cpu = Cpu()
    iommu: Switch | None = Field(default=None, description="The hosts' IOMMU.")
    gpu: Gpu = Gpu()
    kubernetes: Kubernetes = Kubernetes()

    @property
    def ratios(self) -> Mapping[str, Decimal]:
        """Overcommit ratios by resource, clamped to 0.1..100."""
        return {"vcpu": self.overcommit.vcpu, "memoryGiB": self.overcommit.memory_gib}

    @property
    def pages(self) -> Mapping[str, int] | None:
        """Configured huge pages by size; None where each host's own count holds."""
        if self.hugepages is None or not self.hugepages.model_fields_set:
            return None
        return {"2Mi": self.hugepages.size_2mi, "1Gi": self.hugepages.size_1gi}


def mps_units(replicas: int) -> int:
    """Return one slot's part of a GPU's 100 MPS units; what is left over is nobody's."""
    return 100 // replicas
