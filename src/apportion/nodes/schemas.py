"""The inventory document of a node, and how nodes, GPUs and atoms are shown.

One document per node says everything that is known about it; the same document is what a node agent
sends. It is a full picture: a GPU that it does not list is no longer there.
"""

from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field, PlainSerializer

from apportion.doors.schemas import IdempotencyKey, Name, Schema, Text, View
from apportion.nodes.allocations import AllocationReport
from apportion.nodes.outcomes import OwnLayout, UnitName, UnitOutcome

Count = Annotated[int, Field(strict=True, ge=0, le=2**31 - 1)]
MemoryMib = Annotated[int, Field(strict=True, ge=1, le=2**40)]
LongCount = Annotated[int, Field(strict=True, ge=0, le=2**63 - 1)]
LongText = Annotated[str, Field(max_length=4096)]
Flag = Annotated[bool, Field(strict=True)]
Generation = Annotated[int, Field(strict=True, ge=1, le=2**63 - 1)]
ShareText = Annotated[Fraction, PlainSerializer(str, return_type=str)]
Secret = Annotated[str, Field(min_length=1, max_length=16_384)]
AtomClass = Literal["gpu", "gpu.mig", "gpu.slot", "gpu.share"]


class MigInstance(Schema):
    """A MIG device as the driver lists it: a GPU instance and the compute instance that fills it.

    ``start`` is the first memory slice of its placement. ``profile`` is the driver's name for it;
    one such as ``1c.3g.40gb`` is a compute instance that leaves part of its GPU instance unused.
    A GPU instance without a compute instance has neither ``ci_id`` nor ``uuid``. ``managed`` says
    that the node made it because it was asked to, and ``allocation_id`` for what; ``failed`` why it
    alone cannot be used.
    """

    gi_id: Count
    ci_id: Count | None = None
    uuid: Text | None = None
    profile: Text
    start: Annotated[int, Field(strict=True, ge=0, le=31)]
    memory_mib: MemoryMib | None = None
    sm_count: Annotated[int, Field(strict=True, ge=1, le=100_000)] | None = None
    size: Annotated[int, Field(strict=True, ge=1, le=32)] | None = None
    managed: Flag = False
    allocation_id: Text | None = None
    failed: Text | None = None


class MigState(Schema):
    """The MIG mode now and after the next reset, and the instances that exist."""

    current: Flag = False
    pending: Flag = False
    instances: list[MigInstance] = Field(max_length=64, default_factory=list[MigInstance])


class NvLink(Schema):
    """NVLink connections from one GPU to another of the node."""

    peer: Text
    links: Annotated[int, Field(strict=True, ge=1, le=64)]


class MemoryHealth(Schema):
    """A GPU's memory: errors since its last reset, and what that will take out of use."""

    ecc: Flag
    corrected: LongCount | None = None
    uncorrected: LongCount | None = None
    retirement_pending: Flag = False
    remap_failed: Flag = False


class CriticalError(Schema):
    """A critical error (XID) of a GPU, or of the MIG device of that UUID."""

    xid: Count
    instance: Text | None = None
    at: AwareDatetime


class Process(Schema):
    """A process that uses a GPU or one of its instances, through MPS or by itself."""

    pid: Count
    gi_id: Count | None = None
    ci_id: Count | None = None
    mps: Flag = False


class Difference(Schema):
    """Where the driver says otherwise than the table of boards: it is right."""

    profile: Text | None = None
    figure: Text
    driver: LongText
    package: LongText


class ProfilePlacement(Schema):
    """Memory slices in which an instance of a profile may lie."""

    start: Annotated[int, Field(strict=True, ge=0, le=31)]
    size: Annotated[int, Field(strict=True, ge=1, le=32)]


class DriverProfile(Schema):
    """A MIG profile as the driver of the node has it."""

    id: Count
    name: Text
    compute_slices: Count
    max_instances: Count
    memory_mib: MemoryMib
    sm_count: Count
    copy_engines: Count
    decoders: Count
    encoders: Count
    jpeg: Count
    ofa: Count
    placements: list[ProfilePlacement] = Field(max_length=32)


class ProductProfiles(Schema):
    """The profiles of all GPUs of one product."""

    product: Text
    profiles: list[DriverProfile] = Field(max_length=64)


class DriverVersions(Schema):
    """What answers for the GPUs of the node."""

    driver: Text
    cuda: Text
    nvml: Text


class GpuReport(Schema):
    """One physical GPU. ``failed`` gives the reason why it cannot be used, where it cannot."""

    index: Count
    uuid: Text
    product: Text
    memory_mib: MemoryMib | None = None
    pci_address: Text | None = None
    pci_device_id: Text | None = None
    pcie_root: Text | None = None
    numa_node: Count | None = None
    mig: MigState = Field(default_factory=MigState)
    nvlink: list[NvLink] = Field(default_factory=list[NvLink])
    minor: Count | None = None
    memory_health: MemoryHealth | None = None
    xids: list[CriticalError] = Field(max_length=256, default_factory=list[CriticalError])
    processes: list[Process] = Field(max_length=4096, default_factory=list[Process])
    differences: list[Difference] = Field(max_length=1024, default_factory=list[Difference])
    failed: Text | None = None


class HugePages(Schema):
    """Huge pages that exist on the host, by size."""

    size_2mi: Count = Field(alias="2Mi", default=0)
    size_1gi: Count = Field(alias="1Gi", default=0)


class HostReport(Schema):
    """What the machine itself has."""

    logical_cpus: Annotated[int, Field(strict=True, ge=1, le=100_000)]
    memory_mib: MemoryMib
    hugepages: HugePages = Field(default_factory=HugePages)


class Inventory(Schema):
    """Everything about one node. ``node`` names it within its pool.

    ``agent`` is who on the machine follows its spec; left out where somebody else writes this.
    """

    schema_: Literal["apportion.inventory/1"] = Field(
        alias="schema", default="apportion.inventory/1"
    )
    node: Name
    controller: Literal["platform", "tenant"] = "platform"
    owner_tenant_id: Text | None = None
    agent: Text | None = None
    boot_id: Text | None = None
    driver: DriverVersions | None = None
    mig_profiles: list[ProductProfiles] = Field(
        max_length=16, default_factory=list[ProductProfiles]
    )
    problems: list[Text] = Field(max_length=64, default_factory=list[Text])
    host: HostReport
    gpus: list[GpuReport] = Field(max_length=64, default_factory=list[GpuReport])


class NodeUpdate(Schema):
    """Where a node takes its MIG layout from, and which it is to have whatever its pool asks for.

    ``mig_layout_from`` is its ``pool``, or itself (``node``). ``mig_layout`` is a layout's name,
    ``dynamic``, or ``pool`` to follow its pool again. What is null stays as it is.
    """

    mig_layout_from: Literal["pool", "node"] | None = None
    mig_layout: Text | None = None


class NodeSpec(View):
    """What a node is asked to be: each unit and what it wants, as of one generation.

    ``mig-layout`` has the layout's name, how far its mode may be changed, and where instances are
    made on demand those of each GPU; ``gpu-sharing`` the mode and the slots or shares of each GPU;
    ``devices`` what is to be handed out; the others what the pool's policy says of its hosts.
    ``generation`` rises whenever any of it changes.
    """

    node_id: str
    generation: int
    units: dict[str, dict[str, Any]]
    report_every_seconds: int = 10
    acceptance: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])


class CheckResult(Schema):
    """What a check of a new machine found; ``details`` is for people and programs."""

    passed: Flag
    details: dict[str, Any] = Field(max_length=64, default_factory=dict[str, Any])


class NodeReport(Schema):
    """What a node says that it is. ``sequence`` rises with each report that a node makes.

    ``converged`` says up to which generation of the spec each unit is done, ``outcomes`` how far
    each has come. ``acceptance`` has the result of each check that the spec asked for.
    ``allocations`` are all that its unit ``devices`` knows of; null where it cannot tell. They are
    what reservations begin and end by, and lie under the node's signature like all of it.
    ``mig_layout`` is the one that it has from its own file; null where it takes its pool's.
    """

    sequence: Annotated[int, Field(strict=True, ge=1, le=2**63 - 1)]
    observed_generation: Generation
    converged: dict[UnitName, Generation] = Field(max_length=32, default_factory=dict[str, int])
    outcomes: dict[UnitName, UnitOutcome] = Field(
        max_length=32, default_factory=dict[str, UnitOutcome]
    )
    acceptance: dict[Name, CheckResult] = Field(
        max_length=32, default_factory=dict[str, CheckResult]
    )
    allocations: Annotated[list[AllocationReport], Field(max_length=4096)] | None = None
    mig_layout: OwnLayout | None = None
    inventory: Inventory


class ReportAnswer(View):
    """What came of a report. ``generation`` is the one that the node's spec has by now.

    One that is not ``accepted`` changed nothing: the node has made a later one, which was here
    first. ``sequence`` is that of the last one taken in.
    """

    accepted: bool
    reason: Literal["report_out_of_order"] | None
    generation: int
    sequence: int = 0


class ResourceView(View):
    """A host scalar: vcpu in CPUs, memoryGiB in GiB, huge pages in pages, as exact text."""

    resource: str
    total: str
    ratio: str
    capacity: str


class NodeView(View):
    """A node as the operator sees it.

    One that joined by itself has a ``public_key``, and an ``attestor`` who vouched for it; nobody
    has heard of it from ``stale_since`` on. ``own_layout`` is the MIG layout that it has from its
    own file. ``outcomes`` say how far the units of its spec have come. ``reason`` is why it takes
    no work though its GPUs may be well, as data with a ``code``.
    """

    id: str
    pool_id: str
    name: str
    tenant_id: str
    target: str
    controller: str
    health: Literal["healthy", "degraded", "no_capacity"]
    health_reason: str | None
    agent: str | None = None
    mig_layout_from: Literal["pool", "node"] = "pool"
    pinned_layout: str | None = None
    own_layout: str | None = None
    not_given_back: Annotated[
        int, Field(description="How many devices past holders have not let go of.")
    ] = 0
    spec_generation: int = 1
    observed_generation: int | None = None
    attestor: str | None = None
    enrolled_at: AwareDatetime | None = None
    revoked_at: AwareDatetime | None = None
    public_key: str | None = None
    observed_at: AwareDatetime | None = None
    stale_since: AwareDatetime | None = None
    accepted_at: AwareDatetime | None = None
    acceptance: dict[str, Any] = Field(default_factory=dict[str, Any])
    outcomes: dict[str, Any] = Field(default_factory=dict[str, Any])
    reason: dict[str, Any] | None = None
    gpus: int
    inventory_at: AwareDatetime
    resources: list[ResourceView]


class GpuView(View):
    """A GPU: what it is, how it is split, and why it cannot be booked where it cannot."""

    id: str
    pool_id: str
    node: str
    index: int
    product: str
    model: str
    board: str | None
    memory_mib: int | None
    numa_node: int | None
    split: Literal["none", "mig", "slots", "shares"]
    ruler: int
    layout_generation: int
    unbookable_reason: str | None
    stale_since: AwareDatetime | None = None


class AtomView(View):
    """What can be booked, or the reason why it cannot be now."""

    id: str
    pool_id: str
    gpu_id: str
    node: str
    class_: AtomClass = Field(alias="class")
    units: str
    share: ShareText
    bookable: bool
    reason: str | None
    stale_since: AwareDatetime | None = None
    attributes: dict[str, Any]


class JoinTokenCreate(Schema):
    """A token that lets one machine join a pool, once, within ``expires_in`` (an hour by default).

    ``class``, where it is given, has to be the pool's: a token for the wrong pool is a slip.
    """

    name: Text
    class_: Text | None = Field(alias="class", default=None)
    expires_in: Annotated[str, Field(min_length=1, max_length=100)] = "1h"
    idempotency_key: IdempotencyKey | None = None


class JoinTokenView(View):
    """A join token without its secret, and the node that it let in."""

    id: str
    pool_id: str
    name: str
    class_: str = Field(alias="class")
    state: Literal["open", "used", "revoked", "expired"]
    created_by: str
    created_at: AwareDatetime
    expires_at: AwareDatetime
    used_at: AwareDatetime | None
    node_id: str | None
    revoked_at: AwareDatetime | None


class JoinTokenIssued(View):
    """A join token with its secret, which is shown this once.

    What stands behind its dot is the fingerprint of the server's key: the machine that joins with
    it believes no other server.
    """

    token: str
    record: JoinTokenView


class EnrollRequest(Schema):
    """What a machine joins with; the request is signed with the key that ``public_key`` is half of.

    ``attestor`` is who vouches for it, and ``evidence`` what shows that: of ``join-token``
    ``{"token": …}``.
    """

    attestor: Name = "join-token"
    evidence: dict[Name, Secret] = Field(max_length=16)
    public_key: Text
    inventory: Inventory


class EnrollAnswer(View):
    """What a node is from now on, and whom it believes: ``server_key`` signs what it is told."""

    node_id: str
    pool_id: str
    class_: str = Field(alias="class")
    server_key: str
