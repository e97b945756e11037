"""Every action that a policy can name, the roles, and what each role may do.

An action belongs to one group; roles are permits on groups. Actions of kind ``tenant`` are decided
on the tenant alone, before anything else is read; the others on a pool's attributes too, which the
service gives once it has found the pool.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

Role = Literal["owner", "operator", "member", "viewer", "node"]
Group = Literal["self", "read", "use", "report", "operate", "administer"]
Kind = Literal["tenant", "new_pool", "pool", "reservation"]

ROLES: Final[tuple[Role, ...]] = get_args(Role)

GRANTS: Final[Mapping[Role, tuple[Group, ...]]] = {
    "owner": ("self", "read", "use", "report", "operate", "administer"),
    "operator": ("self", "read", "use", "report", "operate"),
    "member": ("self", "read", "use"),
    "viewer": ("self", "read"),
    "node": ("self", "report"),
}
"""What each role may do, by group of actions."""


@dataclass(frozen=True, slots=True)
class Action:
    """An action's group, and on what it is decided.

    ``tenant``: a tenant, no attributes. ``new_pool``: a tenant, with the attributes that the pool
    is to have. ``pool``: a pool and its attributes. ``reservation``: those, and the ask's.
    """

    group: Group
    kind: Kind = "tenant"


ACTIONS: Final[Mapping[str, Action]] = {
    "compute:caller:read": Action("self"),
    "compute:tenants:read": Action("read"),
    "compute:tenants:create": Action("administer"),
    "compute:tenants:manage": Action("administer"),
    "compute:tenants:delete": Action("administer"),
    "compute:tokens:read": Action("administer"),
    "compute:tokens:create": Action("administer"),
    "compute:tokens:manage": Action("administer"),
    "compute:policies:read": Action("read"),
    "compute:policies:check": Action("read"),
    "compute:policies:manage": Action("administer"),
    "compute:sites:read": Action("read"),
    "compute:sites:create": Action("operate"),
    "compute:sites:manage": Action("operate"),
    "compute:pools:read": Action("read"),
    "compute:pools:validate": Action("operate"),
    "compute:pools:create": Action("operate", "new_pool"),
    "compute:pools:manage": Action("operate", "pool"),
    "compute:pools:share": Action("operate", "pool"),
    "compute:nodes:read": Action("read"),
    "compute:nodes:join": Action("report", "pool"),
    "compute:nodes:report": Action("report", "pool"),
    "compute:nodes:manage": Action("operate", "pool"),
    "compute:gpus:read": Action("read"),
    "compute:atoms:read": Action("read"),
    "compute:quotas:read": Action("read"),
    "compute:quotas:set": Action("operate", "pool"),
    "compute:reservations:read": Action("read"),
    "compute:reservations:create": Action("use", "reservation"),
    "compute:reservations:update": Action("use", "reservation"),
    "compute:reservations:release": Action("use"),
    "compute:usage:read": Action("read"),
    "compute:events:read": Action("read"),
    "compute:audit:read": Action("operate"),
    "compute:webhooks:read": Action("operate"),
    "compute:webhooks:manage": Action("operate"),
}

_OF_POOL: Final = {
    "gpuModel": "String",
    "class": "String",
    "sharing": "String",
    "region": "String",
    "owned": "Bool",
}
_OF_ASK: Final = {"gpuCount": "Long", "gpuSlices": "Long", "durationSeconds": "Long"}
ATTRIBUTES: Final[Mapping[Kind, Mapping[str, str]]] = {
    "tenant": {},
    "new_pool": _OF_POOL,
    "pool": _OF_POOL,
    "reservation": {**_OF_POOL, **_OF_ASK},
}
"""What ``context`` holds, by the kind of an action: names and Cedar types."""


def covers(pattern: str, action: str) -> bool:
    """Tell whether a token's action scope covers an action; ``compute:pools:*`` covers a family."""
    if pattern.endswith("*"):
        return action.startswith(pattern[:-1])
    return pattern == action
