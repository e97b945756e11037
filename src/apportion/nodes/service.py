"""Nodes, GPUs and atoms: importing reports, showing them, and handing them to placement."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from apportion.authority.service import Caller
from apportion.bookings.service import shown_attributes
from apportion.errors import ConflictError, InvalidInputError, NotFoundError
from apportion.geometry import boards
from apportion.nodes import rules
from apportion.nodes.assignments import (
    KEPT,
    ask_anew,
    assign,
    hold_nodes_of,
    keep_in_hands,
    leavers,
    unask,
    withdraw,
)
from apportion.nodes.atoms import SPLIT
from apportion.nodes.awaiting import reason_of
from apportion.nodes.contract import (
    Node,
    find_node,
    hold_node,
    own_layout_now,
    pool_of,
    raise_spec,
    raise_specs,
    recut,
    set_layout_from,
    set_pin,
    spec_of,
    take_report,
)
from apportion.nodes.cuts import Cut, cut_of, cut_text, takes_cut, why_not_cut_so, with_cut
from apportion.nodes.devices import ASKED, allocation_id
from apportion.nodes.inventory import TARGETS, import_inventories
from apportion.nodes.join_tokens import create_join_token, list_join_tokens, revoke_join_token
from apportion.nodes.joining import enroll, key_of, revoke_node
from apportion.nodes.links import nvlink_domains
from apportion.nodes.on_demand import NEEDS_RESET
from apportion.nodes.reports import same_again
from apportion.nodes.schemas import AtomView, GpuView, Inventory, NodeView, ResourceView
from apportion.nodes.sizes import FleetSize, count_fleet
from apportion.nodes.staleness import Watch, stale_nodes
from apportion.nodes.units import MIG_UNIT, SHARING_UNIT
from apportion.placement import AtomState, GpuState, NodeState
from apportion.placement.asks import AtomClass
from apportion.placement.selectors import GROUP_KEYS
from apportion.pools.policy import read_stored
from apportion.pools.service import offered_pools
from apportion.quantities.shares import exact_text
from apportion.quantities.units import from_multirange, span, to_multirange
from apportion.store.connections import Connection, transaction
from apportion.store.errors import Violation, guards, register
from apportion.store.runtime import Runtime
from apportion.store.sql import load

__all__ = [
    "ASKED",
    "KEPT",
    "MIG_UNIT",
    "SHARING_UNIT",
    "TARGETS",
    "AtomFacts",
    "Cut",
    "FleetSize",
    "FleetState",
    "Node",
    "Watch",
    "allocation_id",
    "ask_anew",
    "assign",
    "count_fleet",
    "create_join_token",
    "cut_of",
    "cut_text",
    "enroll",
    "find_gpu",
    "find_node",
    "fleet_revisions",
    "get_node",
    "hold_node",
    "hold_nodes_of",
    "import_inventories",
    "keep_in_hands",
    "key_of",
    "leavers",
    "list_atoms",
    "list_gpus",
    "list_join_tokens",
    "list_nodes",
    "load_fleet",
    "own_layout_now",
    "pool_of",
    "raise_spec",
    "raise_specs",
    "recut",
    "report_inventory",
    "revoke_join_token",
    "revoke_node",
    "rules",
    "same_again",
    "set_layout_from",
    "set_pin",
    "spec_of",
    "stale_nodes",
    "sync_placements",
    "take_report",
    "takes_cut",
    "unask",
    "why_not_cut_so",
    "with_cut",
    "withdraw",
]

_QUERIES: Final = load("apportion.nodes")

# How many of a resource's fine units make one as people count it.
FINE: Final = {"vcpu": 1000, "memoryGiB": 1024, "hugepages2Mi": 1, "hugepages1Gi": 1}


def _reported_twice(violation: Violation) -> ConflictError:
    return ConflictError(
        "another node reported this GPU at the same moment",
        hint="Import again",
        details={"key": violation.detail},
    )


def _key_taken(violation: Violation) -> ConflictError:
    del violation
    return ConflictError(
        "another node has this key",
        field="public_key",
        hint="Each machine makes a key of its own: give this one an empty state directory",
    )


register(
    {"gpus_uuid_key": _reported_twice, "nodes_public_key_key": _key_taken}
    | guards(
        "nodes_uid_key",
        "nodes_name_key",
        "mig_placements_units_key",
        "gpus_id_board_key",
        "gpus_id_pool_key",
        "atoms_units_key",
        "atoms_live_key",
        "nodes_target_known",
        "nodes_controller_known",
        "nodes_health_known",
        "nodes_health_reason",
        "nodes_layout_from_known",
        "nodes_pinned_to_something",
        "nodes_own_layout_named",
        "nodes_spec_counted",
        "nodes_observed_was_asked",
        "nodes_observed_whole",
        "nodes_converged_is_object",
        "nodes_outcomes_is_object",
        "nodes_acceptance_is_object",
        "node_resources_resource_known",
        "node_resources_total_not_negative",
        "node_resources_ratio_range",
        "node_resources_hugepages_exact",
        "node_resources_capacity_covers",
        "gpus_split_known",
        "gpus_ruler_positive",
        "atoms_class_known",
        "atoms_units_not_empty",
        "atoms_mig_is_legal",
        "atoms_share_range",
        "atoms_reason_given",
        "atoms_retired_unbookable",
    )
)


async def sync_placements(connection: Connection) -> None:
    """Write the legal placements of every board that the package knows; done at each start."""
    rows = [
        (board.key, profile.name, place.start, to_multirange(place.mask))
        for board in boards()
        for profile in board.profiles
        for place in profile.placements
    ]
    columns = list(zip(*rows, strict=True))
    await connection.execute(
        _QUERIES["sync_placements"],
        {
            "boards": list(columns[0]),
            "profiles": list(columns[1]),
            "starts": list(columns[2]),
            "units": list(columns[3]),
        },
    )


async def list_nodes(
    runtime: Runtime,
    caller: Caller,
    *,
    after: str = "",
    limit: int = 100,
    pool_id: str | None = None,
    name: str | None = None,
    health: str | None = None,
    stale: bool | None = None,
) -> list[NodeView]:
    """Return the nodes of the caller's pools by id, whoever owns the machines."""
    filters = {"pool_id": pool_id, "name": name, "health": health, "stale": stale}
    return await _nodes(runtime, caller, {**filters, "after": after, "limit": limit})


async def get_node(runtime: Runtime, caller: Caller, node_id: str) -> NodeView:
    """Return one node of the caller's pools; NotFoundError for any other."""
    found = await _nodes(runtime, caller, {"id": node_id})
    if not found:
        raise NotFoundError("no such node", field="node_id", given=node_id)
    return found[0]


async def report_inventory(
    runtime: Runtime, caller: Caller, node_id: str, document: Inventory
) -> NodeView:
    """Take in a report about a node that has joined; its name cannot change."""
    node = await get_node(runtime, caller, node_id)
    if document.node != node.name:
        raise InvalidInputError(
            "is another node", field="node", given=document.node, allowed=node.name
        )
    await import_inventories(
        runtime, caller, node.pool_id, [document], action="compute:nodes:report"
    )
    return await get_node(runtime, caller, node_id)


async def list_gpus(
    runtime: Runtime,
    caller: Caller,
    *,
    after: str = "",
    limit: int = 100,
    pool_id: str | None = None,
    node: str | None = None,
) -> list[GpuView]:
    """Return the GPUs of the caller's pools and of those it is offered, by UUID.

    Whoever may book in a pool has to see what there is; who holds it is shown to nobody here.
    """
    parameters = {"after": after, "limit": limit, "pool_id": pool_id, "node": node}
    async with transaction(runtime.db) as connection:
        return await _gpus(connection, caller, parameters)


async def find_gpu(connection: Connection, caller: Caller, gpu_id: str) -> GpuView:
    """Return a GPU of the caller's pools or of those it is offered; NotFoundError for any other."""
    found = await _gpus(connection, caller, {"id": gpu_id})
    if not found:
        raise NotFoundError("no such GPU", field="gpu_id", given=gpu_id)
    return found[0]


async def list_atoms(
    runtime: Runtime,
    caller: Caller,
    *,
    after: str = "",
    limit: int = 100,
    pool_id: str | None = None,
    gpu_id: str | None = None,
    cls: str | None = None,
    bookable: bool | None = None,
    profile: str | None = None,
) -> list[AtomView]:
    """Return the atoms of the GPUs that the caller sees by id, retired ones left out."""
    parameters = {
        "tenant_id": caller.tenant_id,
        "after": after,
        "limit": limit,
        "pool_id": pool_id,
        "gpu_id": gpu_id,
        "class": cls,
        "bookable": bookable,
        "profile": profile,
    }
    async with transaction(runtime.db) as connection:
        offered = await offered_pools(connection, caller)
        cursor = await connection.execute(
            _QUERIES["list_atoms"], {**parameters, "offered": offered}
        )
        return [_atom_view(row) for row in await cursor.fetchall()]


async def fleet_revisions(connection: Connection, pool_ids: Sequence[str]) -> dict[str, int]:
    """Return how often the nodes, GPUs and atoms of some pools were changed."""
    cursor = await connection.execute(_QUERIES["fleet_revisions"], {"ids": list(pool_ids)})
    return {row["id"]: row["fleet_revision"] for row in await cursor.fetchall()}


@dataclass(frozen=True, slots=True)
class AtomFacts:
    """What a booking of an atom says of it: its key, what part of a GPU it is billed as, and more.

    ``attributes`` are those that its node has no say in any more.
    """

    key: str
    share: Fraction
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FleetState:
    """A pool's nodes as placement sees them, nothing held yet, and what stands beside that.

    ``atoms`` are those that a booking names, whole GPUs and instances, by their number; ``agents``
    the nodes on which somebody follows their spec.
    """

    nodes: Sequence[NodeState]
    atoms: Mapping[int, AtomFacts]
    agents: frozenset[int]


async def load_fleet(connection: Connection, pool_id: str) -> FleetState:
    """Return a pool's nodes, their GPUs and atoms."""
    cursor = await connection.execute(_QUERIES["fleet_nodes"], {"pool_id": pool_id})
    found = await cursor.fetchall()
    agents = frozenset(row["id"] for row in found if row.pop("has_agent"))
    cursor = await connection.execute(_QUERIES["fleet_gpus"], {"pool_id": pool_id})
    by_gpu: dict[int, list[Mapping[str, Any]]] = {}
    atoms: dict[int, AtomFacts] = {}
    for row in await cursor.fetchall():
        by_gpu.setdefault(row["id"], []).append(row)
        if row["class"] in ("gpu", "gpu.mig"):
            share = Fraction(row["share_num"], row["share_den"])
            known = shown_attributes(row["attributes"], has_agent=row["node_id"] in agents)
            atoms[row["atom_id"]] = AtomFacts(row["key"], share, known)
    on_nodes: dict[int, list[Mapping[str, Any]]] = {}
    for rows in by_gpu.values():
        on_nodes.setdefault(rows[0]["node_id"], []).append(rows[0])
    gpus: dict[int, list[GpuState]] = {}
    for node_id, firsts in on_nodes.items():
        domains = nvlink_domains(firsts)
        gpus[node_id] = [_gpu_state(by_gpu[row["id"]], domains.get(row["id"])) for row in firsts]
    nodes = [NodeState(**row, gpus=tuple(gpus.get(row["id"], ()))) for row in found]
    return FleetState(nodes, atoms, agents)


async def _nodes(runtime: Runtime, caller: Caller, filters: Mapping[str, object]) -> list[NodeView]:
    everything = {
        "id": None,
        "after": "",
        "limit": 1,
        "pool_id": None,
        "name": None,
        "health": None,
        "stale": None,
    }
    async with transaction(runtime.db) as connection:
        cursor = await connection.execute(
            _QUERIES["list_nodes"], {**everything, **filters, "tenant_id": caller.tenant_id}
        )
        return [_node_view(row) for row in await cursor.fetchall()]


def _gpu_state(rows: Sequence[Mapping[str, Any]], nvlink_domain: int | None) -> GpuState:
    first = rows[0]
    bookable = [row for row in rows if row["bookable"]]
    # A GPU that cannot be booked offers nothing, but what it has tells why an ask finds none.
    pieces = bookable or rows
    shown = pieces[-1]["attributes"]
    # What MIG instances differ in stands on each of them.
    own = {"migProfile", "giId", "ciId", "migUuid", "slot"}
    if first["split"] == "mig":
        own.add("vramGiB")
    return GpuState(
        id=first["id"],
        split=first["split"],
        ruler=first["ruler"],
        group={k: v for k, v in shown.items() if k in GROUP_KEYS and k not in own},
        attributes={k: v for k, v in shown.items() if k not in GROUP_KEYS and k not in own}
        | ({} if nvlink_domain is None else {"nvlinkDomain": nvlink_domain}),
        generation=first["layout_generation"],
        atom=first["atom_id"] if first["split"] == "none" else None,
        atoms=tuple(_atom_state(row, first["ruler"]) for row in pieces if _is_piece(row))
        if first["split"] == "mig"
        else (),
        withheld=_withheld(rows),
        bookable=bool(bookable),
    )


def _is_piece(row: Mapping[str, Any]) -> bool:
    """Tell whether an atom is a piece of a MIG GPU: an instance; cut on demand, the GPU as well."""
    return row["class"] == "gpu.mig" or row["reason"] not in (SPLIT, NEEDS_RESET)


def _withheld(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[AtomClass, str], ...]:
    """Return the classes that a GPU has only in the other MIG mode, and that reason."""
    classes = {row["class"] for row in rows if row["reason"] == NEEDS_RESET}
    return tuple((cls, NEEDS_RESET) for cls in sorted(classes))


def _atom_state(row: Mapping[str, Any], ruler: int) -> AtomState:
    attributes = row["attributes"]
    if row["class"] == "gpu":
        return AtomState(row["atom_id"], span(0, ruler), None, attributes, "gpu")
    units = from_multirange(row["units"])
    return AtomState(row["atom_id"], units, attributes["migProfile"], attributes)


def _node_view(row: Mapping[str, Any]) -> NodeView:
    resources = [
        ResourceView(
            resource=each["resource"],
            total=exact_text(Fraction(each["total"], FINE[each["resource"]]), 10),
            ratio=each["ratio"],
            capacity=exact_text(Fraction(each["capacity"], FINE[each["resource"]]), 10),
        )
        for each in row["resources"]
    ]
    followed = row["agent"] is not None and row["pool_agent"] != "none"
    reason = reason_of(row, read_stored(row["policy"]), followed=followed)
    return NodeView.model_validate({**row, "resources": resources, "reason": reason})


def _atom_view(row: Mapping[str, Any]) -> AtomView:
    share = Fraction(row["share_num"], row["share_den"])
    fields = {key: row[key] for key in AtomView.model_fields if key in row}
    return AtomView.model_validate({**fields, "share": share})


async def _gpus(
    connection: Connection, caller: Caller, filters: Mapping[str, object]
) -> list[GpuView]:
    everything = {"id": None, "after": "", "limit": 1, "pool_id": None, "node": None}
    mine = {"tenant_id": caller.tenant_id, "offered": await offered_pools(connection, caller)}
    cursor = await connection.execute(_QUERIES["list_gpus"], {**everything, **filters, **mine})
    return [GpuView(**row) for row in await cursor.fetchall()]
