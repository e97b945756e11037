"""Pool policy as other rooms use it: its values, its schema, and what is wrong with one."""

from apportion.pools.policy_fields import (
    HUGEPAGE_SIZES_MIB,
    REPLICAS_MAX,
    SHARES,
    PlacementPolicy,
    PoolPolicy,
    mps_units,
)
from apportion.pools.policy_reading import (
    near_miss,
    policy_schema,
    read_policy,
    read_stored,
    unknown_fields,
)
from apportion.pools.policy_rules import (
    DYNAMIC,
    policy_problems,
    register_acceptance,
    register_attestor,
)

__all__ = [
    "DYNAMIC",
    "HUGEPAGE_SIZES_MIB",
    "REPLICAS_MAX",
    "SHARES",
    "PlacementPolicy",
    "PoolPolicy",
    "mps_units",
    "near_miss",
    "policy_problems",
    "policy_schema",
    "read_policy",
    "read_stored",
    "register_acceptance",
    "register_attestor",
    "unknown_fields",
]
