"""What goes in and out of the tenants, tokens and policies API."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AwareDatetime, BeforeValidator, Field

from apportion.authority.actions import Role
from apportion.doors.schemas import IdempotencyKey, Name, Schema, TenantId, Text, Version, View
from apportion.errors import InvalidInputError
from apportion.quantities.windows import parse_instant

# Both come out on terminals: no control characters but those that end and indent lines of a policy.
PolicyText = Annotated[
    str,
    Field(min_length=1, max_length=10_000, pattern=r"^[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]+$"),
]
Description = Annotated[str, Field(max_length=1000, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
Scope = Annotated[str, Field(pattern=r"^(\*|compute:(\*|[a-z]+:(\*|[a-z]+)))$")]
Count = Annotated[int, Field(strict=True, ge=0, le=2**40)]
Duration = Annotated[str, Field(min_length=1, max_length=100)]


def _instant(value: object) -> object:
    """Take text alone, by one grammar: pydantic would also take a number of seconds."""
    if isinstance(value, datetime):
        return value
    if not isinstance(value, str):
        raise ValueError("must be text, an RFC 3339 instant with its zone")  # noqa: TRY004 - to pydantic
    try:
        return parse_instant(value, field="")
    except InvalidInputError as error:
        raise ValueError(error.message) from None


Instant = Annotated[AwareDatetime, BeforeValidator(_instant)]


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
    expires_at: Instant | None = None
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
    description: Description = ""
    idempotency_key: IdempotencyKey | None = None


class PolicyUpdate(Schema):
    """A new text, a new description, or both; ``version`` is the one that was read."""

    version: Version
    text: PolicyText | None = None
    description: Description | None = None


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


class PoolContext(Schema):
    """What policies see of a pool; ``id`` is for policies that name one."""

    id: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    gpu_model: Text = Field(alias="gpuModel")
    class_: Text = Field(alias="class")
    sharing: Text
    region: Text
    owned: Annotated[bool, Field(strict=True)]


class PolicyCheck(Schema):
    """What to decide: may this token, or one of this role, do this here.

    Without ``token_id`` and ``role`` it is asked about the caller's own token. ``pool`` gives the
    attributes of a pool (gpuModel, class, sharing, region, owned; id, for policies that name one);
    an action on a pool needs all but the id, and no other action takes them.
    """

    action: str
    token_id: str | None = None
    role: Role | None = None
    pool: PoolContext | None = None
    ask: AskContext = Field(default_factory=AskContext)


class PolicyReason(View):
    """A policy that made a decision: a role's own (``builtin``) or an added one.

    ``text`` is empty where the policy is of a tenant above the token's own: it may name others.
    """

    id: str
    name: str
    tenant_id: str | None
    builtin: bool
    effect: Literal["permit", "forbid"]
    text: str


class PolicyRuling(View):
    """A decision and what made it.

    ``scope`` tells whether the token's own action scope covers the action. No policies: nothing
    permits it. ``errors`` are policies that could not be evaluated: such a one permits nothing, and
    if it forbids, it forbids.
    """

    allowed: bool
    action: str
    scope: bool
    role: Role
    tenant_id: str
    policies: list[PolicyReason]
    errors: list[str]
    message: str
