"""What goes in and out of the sites, pools, offers and quotas API."""

from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field

from apportion.doors.schemas import (
    IdempotencyKey,
    Name,
    Problem,
    Schema,
    TenantId,
    Text,
    Version,
    View,
)

PoolClass = Literal["metal-host", "vps-host", "kubernetes-host", "slurm-host", "provider"]
Sharing = Literal["exclusive", "mig", "timeslice", "mps"]
Agent = Literal["apportion", "none"]
SiteKind = Literal["shared", "dedicated", "custom"]
QuotaResource = Literal[
    "gpu",
    "gpu.mig",
    "gpu.slot",
    "gpu.share",
    "gpuEquivalents",
    "vcpu",
    "memoryGiB",
    "hugepages2Mi",
    "hugepages1Gi",
]
Amount = Annotated[int, Field(strict=True, ge=0, le=2**53)]
ExactText = Annotated[
    str,
    Field(
        pattern=r"^[0-9]{1,15}([.][0-9]{1,9}|/[1-9][0-9]{0,5})?$",
        examples=["2.5", "7/2"],
    ),
]
"""A number that need not be whole: ``"2.5"``, and for gpuEquivalents ``"7/2"`` too."""
Limit = Amount | ExactText | Literal["unlimited"]
Quantity = int | str
"""An exact amount: a number where it is whole, else text (``"0.5"``, ``"3/7"``)."""
GpuModel = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._+-]{0,99}$")]


class PoolCreate(Schema):
    """A new pool. ``site_id`` may be left out where the tenant has one site."""

    name: Name
    class_: PoolClass = Field(alias="class", default="metal-host")
    gpu_model: GpuModel
    sharing: Sharing = "exclusive"
    site_id: str | None = None
    agent: Agent | None = Field(
        default=None,
        description="Who runs on its machines: apportion, or none at a provider's.",
    )
    provider_account_id: Text | None = None
    policy: dict[str, Any] = Field(default_factory=dict[str, Any])
    owner_quota: dict[QuotaResource, Limit] = Field(
        default_factory=lambda: {"gpu": 2147483647},
        description="The owner's own limits; a resource without a row grants 0.",
    )
    idempotency_key: IdempotencyKey | None = None


class QuotaView(View):
    """What a tenant may use of a pool. ``max`` and ``available`` may be ``"unlimited"``."""

    tenant_id: str
    pool_id: str
    resource: QuotaResource
    max: Quantity
    used: Quantity
    available: Quantity


class QuotaSet(Schema):
    """A new limit; one below what is used is legal and stops new work.

    ``tenant_id`` is the caller's own tenant, or one that the pool is offered to.
    """

    tenant_id: TenantId | None = None
    pool_id: str
    resource: QuotaResource
    max: Limit


class StaleNodes(View):
    """Nodes that nobody hears of, their GPUs, and since when the first of them is one."""

    nodes: int
    gpus: int
    since: AwareDatetime


class PoolView(View):
    """A pool as its tenant sees it; ``stale`` are the nodes of it that nobody hears of."""

    id: str
    name: str
    owner_tenant_id: str
    site_id: str
    region: str
    class_: PoolClass = Field(alias="class")
    gpu_model: str
    sharing: Sharing
    agent: str
    provider_account_id: str | None
    policy: dict[str, Any]
    version: int
    owned: bool
    archived: bool
    created_at: AwareDatetime
    stale: StaleNodes | None = None
    quotas: list[QuotaView]


class PoolUpdate(Schema):
    """A new policy (which replaces the old one whole), a new GPU model, or both.

    ``version`` is the one that was read: an update of another one is CONFLICT.
    """

    version: Version
    policy: dict[str, Any] | None = None
    gpu_model: GpuModel | None = None


class PoolValidate(Schema):
    """A dry run: of ``create``, or of ``update`` on the pool ``pool_id``."""

    create: PoolCreate | None = None
    pool_id: str | None = None
    update: PoolUpdate | None = None


class Validation(View):
    """What create or update would refuse, each as the problem that it would answer with.

    ``unknown_fields`` are policy fields that are stored as given and that nothing reads.
    """

    valid: bool
    problems: list[Problem]
    unknown_fields: list[str]


class OfferPut(Schema):
    """An offer of a pool to a tenant, with limits by resource; offering again updates both.

    Limits that are not mentioned stay as they are; gpuEquivalents begin without one. With
    ``include_descendants`` tenants below the offered one use the pool too, on its quota.
    """

    quota: dict[QuotaResource, Limit] = Field(default_factory=dict[QuotaResource, Limit])
    priority: Annotated[int, Field(strict=True, ge=-1000, le=1000)] = 0
    include_descendants: Annotated[bool, Field(strict=True)] = False


class OfferView(View):
    """An offer, with the offered tenant's quotas on the pool."""

    pool_id: str
    tenant_id: str
    priority: int
    include_descendants: bool
    created_at: AwareDatetime
    updated_at: AwareDatetime
    quotas: list[QuotaView]


class OfferRemoved(View):
    """Whether there was an offer."""

    removed: bool


class SiteCreate(Schema):
    """A new site. Root's are ``shared`` or ``dedicated``, every other tenant's ``custom``."""

    name: Name
    region: Name
    kind: SiteKind | None = None
    idempotency_key: IdempotencyKey | None = None


class SiteUpdate(Schema):
    """A new name, a new region, or both."""

    name: Name | None = None
    region: Name | None = None


class SiteView(View):
    """A place that pools live in."""

    id: str
    tenant_id: str
    name: str
    region: str
    kind: SiteKind
    created_at: AwareDatetime


class SiteDeleted(View):
    """A site is deleted; deleting one that is not there is NOT_FOUND."""

    removed: bool
