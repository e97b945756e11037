"""Sites, pools, offers and quotas: what other rooms and the API use of this room."""

from apportion.pools.amounts import EQUIVALENTS, show_amount, show_limit
from apportion.pools.archiving import archive_pool
from apportion.pools.changing import update_pool, validate_pool
from apportion.pools.creating import create_pool
from apportion.pools.gates import Turn, close_gates_of
from apportion.pools.offers import list_offers, offer_pool, unoffer_pool
from apportion.pools.quotas import (
    AskedToCharge,
    Quota,
    QuotaKey,
    ask_to_charge,
    charge,
    find_quota,
    get_quota,
    list_quotas,
    read_quotas,
    set_quota,
)
from apportion.pools.reading import (
    PoolUse,
    archived_pools,
    changed_pools,
    changed_quotas,
    find_all_records,
    find_records,
    get_pool,
    gpu_models,
    hold_record,
    hold_records,
    hold_with_quotas,
    list_pools,
    load_record,
    offered_pools,
    own_record,
    priorities,
)
from apportion.pools.rows import PoolRecord
from apportion.pools.sites import create_site, delete_site, get_site, list_sites, update_site
from apportion.pools.unheard import register_stale_nodes
from apportion.pools.validators import (
    PoolBefore,
    PoolChange,
    register_follow_up,
    register_validator,
)

__all__ = [
    "EQUIVALENTS",
    "AskedToCharge",
    "PoolBefore",
    "PoolChange",
    "PoolRecord",
    "PoolUse",
    "Quota",
    "QuotaKey",
    "Turn",
    "archive_pool",
    "archived_pools",
    "ask_to_charge",
    "changed_pools",
    "changed_quotas",
    "charge",
    "close_gates_of",
    "create_pool",
    "create_site",
    "delete_site",
    "find_all_records",
    "find_quota",
    "find_records",
    "get_pool",
    "get_quota",
    "get_site",
    "gpu_models",
    "hold_record",
    "hold_records",
    "hold_with_quotas",
    "list_offers",
    "list_pools",
    "list_quotas",
    "list_sites",
    "load_record",
    "offer_pool",
    "offered_pools",
    "own_record",
    "priorities",
    "read_quotas",
    "register_follow_up",
    "register_stale_nodes",
    "register_validator",
    "set_quota",
    "show_amount",
    "show_limit",
    "unoffer_pool",
    "update_pool",
    "update_site",
    "validate_pool",
]
