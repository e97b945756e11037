"""What goes in and out of the tenants, tokens and policies API."""

from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field

from apportion.authority.actions import Role
from apportion.doors.schemas import IdempotencyKey, Name, Schema, TenantId, Text, Version, View

PolicyText = Annotated[str, Field(min_length=1, max_length=10_000)]
Scope = Annotated[str, Field(pattern=r"^(\*|compute:(\*|[a-z]+:(\*|[a-z]+)))$")]
Count = Annotated[int, Field(strict=True, ge=0, le=2**40)]
Duration = Annotated[str, Field(min_length=1, max_length=100)]


class TenantCreate(Schema):
    """A new tenant under ``parent_id``, which is the caller's own tenant where it is left out."""

    id: TenantId
    name: Text
    parent_id: TenantId | None = None


class TenantUpdate(Schema):
    """What can be changed of a tenant; its id and its place in the tree never are."""

    name: Text


class TenantView(View):
    """A tenant; ``ancestors`` is the way from root to it, itself included."""

    id: str
    name: str
    parent_id: str | None
    ancestors: list[str]
    created_at: AwareDatetime
    deleted_at: AwareDatetime | None


class TenantDeleted(View):
    """What the deletion of a tenant did."""

    tenant: TenantView
    archived_pools: list[str]
    withdrawn_offers: list[str]
    """Pools that had been offered to it."""
    ended_reservations: int
    revoked_tokens: int


class TokenCreate(Schema):
    """A new token. It can do what its role may and ``actions`` cover, until ``expires_at``.

    ``actions`` are exact (``compute:pools:read``), a family (``compute:pools:*``) or ``*``.
    ``expires_in`` is a duration such as ``90d``; give it or ``expires_at`` or neither.
    """

    name: Text
    role: Role
    actions: Annotated[list[Scope], Field(min_length=1, max_length=100)] = Field(
        default_factory=lambda: ["*"]
    )
    expires_at: AwareDatetime | None = None
    expires_in: Duration | None = None
    idempotency_key: IdempotencyKey | None = None


class TokenRotate(Schema):
    """How long the earlier secret goes on working (``1h``); not at all where it is left out."""

    overlap: Duration | None = None


class TokenView(View):
    """A token without its secret."""

    id: str
    tenant_id: str
    name: str
    role: Role
    actions: list[str]
    created_by: str
    created_at: AwareDatetime
    expires_at: AwareDatetime | None
    revoked_at: AwareDatetime | None
    last_used_at: AwareDatetime | None
    state: Literal["active", "expired", "revoked"]


class TokenIssued(View):
    """A token with its secret, which is shown this once."""

    token: str
    record: TokenView


class CallerView(View):
    """Who the token that was sent stands for, and what it may do at all."""

    tenant_id: str
    token_id: str
    home_tenant_id: str
    role: Role
    actions: list[str]
    expires_at: AwareDatetime | None


class PolicyCreate(Schema):
    """A Cedar policy that holds for the caller's tenant and all below it."""

    name: Name
    text: PolicyText
    description: Annotated[str, Field(max_length=1000)] = ""
    idempotency_key: IdempotencyKey | None = None


class PolicyUpdate(Schema):
    """A new text, a new description, or both; ``version`` is the one that was read."""

    version: Version
    text: PolicyText | None = None
    description: Annotated[str, Field(max_length=1000)] | None = None


class PolicyView(View):
    """An added policy."""

    id: str
    tenant_id: str
    name: str
    description: str
    text: str
    effect: Literal["permit", "forbid"]
    version: int
    created_at: AwareDatetime
    updated_at: AwareDatetime


class Deleted(View):
    """Whether something was there to be removed."""

    removed: bool


class RoleView(View):
    """A built-in role: the actions that it grants, and the policy that says so."""

    role: Role
    actions: list[str]
    text: str


class AskContext(Schema):
    """What policies see of an ask for GPUs."""

    gpu_count: Count = Field(alias="gpuCount", default=0)
    gpu_slices: Count = Field(alias="gpuSlices", default=0)
    duration_seconds: Count = Field(alias="durationSeconds", default=0)


class PolicyCheck(Schema):
    """What to decide: may this token, or one of this role, do this here.

    Without ``token_id`` and ``role`` it is asked about the caller's own token. ``pool`` gives the
    attributes of a pool (gpuModel, class, sharing, region, owned); an action on a pool needs all.
    """

    action: str
    token_id: str | None = None
    role: Role | None = None
    pool: dict[str, Any] | None = None
    ask: AskContext = Field(default_factory=AskContext)


class PolicyReason(View):
    """A policy that made a decision: a role's own (``builtin``) or an added one."""

    id: str
    name: str
    tenant_id: str | None
    builtin: bool
    effect: Literal["permit", "forbid"]
    text: str


class PolicyRuling(View):
    """A decision and what made it.

    ``scope`` tells whether the token's own action scope covers the action. No policies: nothing
    permits it. ``errors`` are policies that could not be evaluated, which count as not matching.
    """

    allowed: bool
    action: str
    scope: bool
    role: Role
    tenant_id: str
    policies: list[PolicyReason]
    errors: list[str]
    message: str
