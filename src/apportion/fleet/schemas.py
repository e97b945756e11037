"""What a fleet file says, and its JSON Schema.

Objects are named by what a person calls them: a tenant by its id, everything else by its name
within the tenant whose it is. What the file leaves out is left as it is on the server.
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.json_schema import GenerateJsonSchema

from apportion.doors.schemas import Name, TenantId, Text
from apportion.pools.schemas import Agent, GpuModel, Limit, PoolClass, QuotaResource, Sharing
from apportion.pools.schemas import SiteKind as Kind
from apportion.tenants.schemas import Description, PolicyText

API_VERSION: Final = "apportion/v1"


def _plain(value: object) -> object:
    """Take an exact number that is not whole as the API takes it: as text."""
    return f"{value:f}" if isinstance(value, Decimal) else value


Quota = dict[
    QuotaResource,
    Annotated[
        Limit,
        BeforeValidator(_plain),
        WithJsonSchema(
            {
                "anyOf": [
                    {"type": "number", "minimum": 0},
                    {"type": "string", "pattern": "^([0-9]+([.][0-9]+|/[0-9]+)?|unlimited)$"},
                ]
            }
        ),
    ],
]
_QUOTA: Final = (
    "Limits by resource. What is not named grants 0, but gpuEquivalents, which then have no limit."
)


class Section(BaseModel):
    """The base of everything in a fleet file: what is not known is refused as a slip."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Owned(Section):
    """Something that one tenant has."""

    name: Name
    tenant: TenantId | None = Field(
        default=None, description="Whose it is; the tenant that applies the file, if left out."
    )


class Tenant(Section):
    """A tenant. Its id and its place in the tree never change."""

    id: TenantId
    name: Text
    parent: TenantId | None = Field(
        default=None, description="The tenant that applies the file, if left out."
    )


class Site(Owned):
    """A place that pools live in. Its kind never changes."""

    region: Name
    kind: Kind | None = Field(
        default=None,
        description="shared (the default) or dedicated for root, custom for every other tenant.",
    )


class Offer(Section):
    """A pool in another tenant's view, with that tenant's limits."""

    quota: Quota = Field(description=_QUOTA)
    priority: Annotated[int, Field(strict=True, ge=-1000, le=1000)] = 0
    include_descendants: Annotated[bool, Field(strict=True)] = False


class Pool(Owned):
    """A pool. Only its model, policy, limits and offers change."""

    site: Name = Field(description="The name of a site of the same tenant.")
    class_: PoolClass = Field(alias="class", default="metal-host")
    gpu_model: GpuModel
    sharing: Sharing = "exclusive"
    agent: Agent | None = None
    provider_account_id: Text | None = None
    policy: dict[str, Any] | None = Field(
        default=None, description="The whole policy; left as it is (at first empty) if left out."
    )
    owner_quota: Quota | None = Field(
        default=None, description=f"{_QUOTA} Whole GPUs without a bound if left out at first."
    )
    offers: dict[TenantId, Offer] | None = Field(
        default=None, description="By the id of the tenant, which is below the pool's own."
    )


class Policy(Owned):
    """An access policy, which holds for its tenant and all tenants below."""

    text: PolicyText = Field(description="One policy in Cedar.")
    description: Description | None = None


class Fleet(Section):
    """A fleet as code: tenants, sites, pools with their offers and limits, access policies."""

    api_version: Literal["apportion/v1"] = Field(alias="apiVersion")
    tenants: list[Tenant] | None = None
    sites: list[Site] | None = None
    pools: list[Pool] | None = None
    policies: list[Policy] | None = None


class _Schema(GenerateJsonSchema):
    """A field is called by its name: pydantic would title ``gpu_model`` "Gpu Model"."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - pydantic's
        """Give no field a title."""
        return False


def fleet_schema() -> dict[str, Any]:
    """Return the JSON Schema of a fleet file, the fields of a pool's policy included."""
    from apportion.pools.policy import policy_schema

    schema = Fleet.model_json_schema(schema_generator=_Schema)
    policy = _renamed(policy_schema())
    definitions = schema["$defs"]
    definitions |= policy.pop("$defs", {})
    definitions["PoolPolicy"] = policy
    field = definitions["Pool"]["properties"]["policy"]
    field["anyOf"] = [{"$ref": "#/$defs/PoolPolicy"}, {"type": "null"}]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Apportion fleet",
        **{name: value for name, value in schema.items() if name != "title"},
    }


def _renamed(policy: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema whose definitions collide with none of the fleet's."""
    start: Final = "#/$defs/"

    def walk(value: Any) -> Any:
        if isinstance(value, list):
            return [walk(each) for each in value]  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(value, dict):
            return value
        found = {str(name): walk(each) for name, each in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        if isinstance(found.get("$ref"), str):
            found["$ref"] = start + "Policy." + found["$ref"].removeprefix(start)
        return found

    renamed = walk(policy)
    renamed["$defs"] = {f"Policy.{name}": each for name, each in renamed.get("$defs", {}).items()}
    return renamed
