"""What a server's pool can do, as the planner needs to know it: read from its GPUs and atoms."""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from apportion.cli.connection import find_pool
from apportion.errors import InvalidStateError
from apportion.planning.capabilities import ClusterGpuCaps

if TYPE_CHECKING:
    from apportion.client import Client
    from apportion.nodes.schemas import AtomClass, GpuView
    from apportion.pools.schemas import PoolView

_PAGE = 1000
_NODE_CANNOT_YET = (
    *("node_stale", "spec_not_converged"),
    *("acceptance_pending", "acceptance_failed"),
)
"""Reasons that say nothing of what a GPU is cut into: whoever asks for that waits."""


def pool_capabilities(name: str) -> ClusterGpuCaps:
    """Return what a pool, by name or id, of the environment's server can do.

    Raises NotFoundError for an unknown pool, InvalidStateError for one without GPUs or with several
    kinds of board, which no one answer fits.
    """
    from apportion.client import Client

    with Client.from_environment(dict(os.environ)) as client:
        pool = find_pool(client, name, field="--pool")
        kinds = capabilities_of(client, pool)
    if len(kinds) > 1:
        models = ", ".join(str(caps.gpu_model) for caps in kinds)
        raise InvalidStateError(
            f"the pool has several kinds of board: {models}",
            field="--pool",
            given=name,
            hint="Name one of them with --gpu-model, without --pool",
        )
    return kinds[0]


def capabilities_of(client: "Client", pool: "PoolView") -> list[ClusterGpuCaps]:
    """Return what the pool's GPUs can do, one answer for each kind of board that it has.

    The MIG profiles are those of its bookable atoms, and of those whose node takes no work just
    now: what its GPUs are cut into, not what they could be. Raises InvalidStateError where the
    pool has no GPUs.
    """
    by_board: dict[str | None, list[GpuView]] = {}
    for gpu in client.list_gpus(pool_id=pool.id, limit=_PAGE).all():
        by_board.setdefault(gpu.board, []).append(gpu)
    if not by_board:
        raise InvalidStateError(
            f"the pool {pool.name} has no GPUs yet",
            hint=f"Import a node: `apportion node import {pool.name} FILE`",
        )
    profiles = _profiles(client, pool)
    return [_capabilities(pool, board, gpus, profiles) for board, gpus in by_board.items()]


def split_capabilities(pool: "PoolView") -> ClusterGpuCaps:
    """Return what the pool's own record says: its sharing mode, and its slots or shares.

    Enough for any ask that neither names memory nor a part of a GPU that MIG splits, and it costs
    no look at thousands of GPUs.
    """
    # Loading the schema of policies takes longer than all else that a command loads before it asks.
    from apportion.pools.policy import read_policy

    policy = read_policy(pool.policy, pool.sharing)
    return ClusterGpuCaps(
        supports_mig=pool.sharing == "mig",
        supports_mps=pool.sharing == "mps",
        supports_timeslice=pool.sharing == "timeslice",
        slots_per_gpu=policy.replicas,
        shares_per_gpu=policy.shares,
        gpu_model=pool.gpu_model,
    )


def _capabilities(
    pool: "PoolView",
    board: str | None,
    gpus: "Sequence[GpuView]",
    profiles: Mapping[str, Collection[str]],
) -> ClusterGpuCaps:
    cut = [name for gpu in gpus for name in profiles.get(gpu.id, ())]
    reported = [gpu.memory_mib for gpu in gpus if gpu.memory_mib is not None]
    return replace(
        split_capabilities(pool),
        # What no catalogue knows can be booked whole, and cannot be planned by its slices.
        supports_mig=pool.sharing == "mig" and board is not None,
        mig_profiles=cut,
        gpu_model=pool.gpu_model if board is None else board,
        memory_mib=min(reported, default=None),
    )


def _profiles(client: "Client", pool: "PoolView") -> Mapping[str, Collection[str]]:
    """Return the profiles that each GPU is cut into, by the GPU's id."""
    if pool.sharing != "mig":
        return {}
    cut: dict[str, dict[str, None]] = {}
    for atom in client.list_atoms(pool_id=pool.id, class_="gpu.mig", limit=_PAGE).all():
        if atom.bookable or atom.reason in _NODE_CANNOT_YET:
            cut.setdefault(atom.gpu_id, {})[str(atom.attributes["migProfile"])] = None
    return cut


def part_class(pool: "PoolView") -> "AtomClass":
    """Return the class of the parts that the pool splits GPUs into; ``gpu`` where it does not."""
    if pool.sharing == "exclusive":
        return "gpu"
    if pool.sharing == "mig":
        return "gpu.mig"
    return "gpu.share" if split_capabilities(pool).shares_per_gpu is not None else "gpu.slot"
