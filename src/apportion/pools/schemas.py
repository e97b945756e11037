"""What goes in and out of the pools API."""

from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

PoolClass = Literal["metal-host", "vps-host", "kubernetes-host", "slurm-host", "provider"]
Sharing = Literal["exclusive", "mig", "timeslice", "mps"]
QuotaResource = Literal["gpu", "gpu.mig", "gpu.slot", "gpu.share", "vcpu", "memoryGiB"]
Amount = Annotated[int, Field(strict=True, ge=0, le=2**53)]
Limit = Amount | Literal["unlimited"]
IdempotencyKey = Annotated[str, Field(min_length=1, max_length=200)]
# No control characters: what is stored comes out on terminals, where they move the cursor and more.
Text = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]
GpuModel = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._+-]{0,99}$")]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$")]


class Schema(BaseModel):
    """The base of all bodies: what is not known is refused, so that a slip is not ignored."""

    model_config = ConfigDict(extra="forbid")


class View(BaseModel):
    """The base of all answers: what a newer server adds is ignored by an older client."""

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True)


class PoolCreate(Schema):
    """A new pool. ``site_id`` may be left out where the tenant has one site."""

    name: Name
    class_: PoolClass = Field(alias="class", default="metal-host")
    gpu_model: GpuModel
    sharing: Sharing = "exclusive"
    site_id: str | None = None
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
    max: Decimal | Literal["unlimited"]
    used: Decimal
    available: Decimal | Literal["unlimited"]


class QuotaSet(Schema):
    """A new limit; one below what is used is legal and stops new work."""

    pool_id: str
    resource: QuotaResource
    max: Limit


class PoolView(View):
    """A pool as its tenant sees it."""

    id: str
    name: str
    owner_tenant_id: str
    site_id: str
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
    quotas: list[QuotaView]


class SiteView(View):
    """A place that pools live in."""

    id: str
    tenant_id: str
    name: str
    region: str
