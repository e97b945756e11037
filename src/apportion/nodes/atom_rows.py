"""Bringing the atoms in the database in line with what nodes report."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from fractions import Fraction
from typing import Any, Final

from psycopg.types.json import Jsonb

from apportion.bookings import service as bookings
from apportion.nodes.derived import Derived, NodeRows
from apportion.nodes.on_demand import without_foreign
from apportion.nodes.specs import AtomSpec, GpuSpec
from apportion.pools.service import PoolRecord
from apportion.store.connections import Connection
from apportion.store.sql import load

_QUERIES: Final = load("apportion.nodes")

MISSING: Final = "instance_missing"


async def write_atoms(
    connection: Connection,
    pool: PoolRecord,
    derived: Sequence[Derived],
    nodes: NodeRows,
    now: datetime,
) -> None:
    cursor = await connection.execute(
        _QUERIES["live_atoms"], {"node_ids": [node["id"] for node in nodes.values()]}
    )
    there: dict[str, dict[str, dict[str, Any]]] = {}
    gpu_ids: dict[str, int] = {}
    for row in await cursor.fetchall():
        gpu_ids[row["uuid"]] = row["gpu_id"]
        if row["key"] is not None:
            there.setdefault(row["uuid"], {})[row["key"]] = row
    gpus = [gpu for each in derived for gpu in each.gpus]
    asked = await _asked(connection, gpus, there, now)
    wanted = {
        gpu.report.uuid: {atom.key: atom for atom in without_foreign(gpu, asked).atoms}
        if gpu.on_demand
        else {atom.key: atom for atom in gpu.atoms}
        for gpu in gpus
    }
    gone = [
        atom
        for uuid, atoms in there.items()
        for key, atom in atoms.items()
        if not _is_same(atom, wanted.get(uuid, {}).get(key))
    ]
    recut = [uuid for uuid, atoms in wanted.items() if _is_recut(there.get(uuid), atoms)]
    await connection.execute(_QUERIES["raise_generation"], {"uuids": recut})
    for atom in await _let_go(connection, gone, now):
        del there[atom["uuid"]][atom["key"]]
    fresh = [
        (gpu_ids[uuid], atom)
        for uuid, atoms in wanted.items()
        for key, atom in atoms.items()
        if key not in there.get(uuid, {})
    ]
    await _insert_atoms(connection, pool, fresh)
    kept = [
        (there[uuid][key], atom)
        for uuid, atoms in wanted.items()
        for key, atom in atoms.items()
        if key in there.get(uuid, {})
    ]
    await _update_atoms(connection, kept)


async def _asked(
    connection: Connection,
    gpus: Sequence[GpuSpec],
    there: Mapping[str, Mapping[str, Mapping[str, Any]]],
    now: datetime,
) -> set[str]:
    """Return the keys of instances, made on demand and reported, that somebody has."""
    keys = {
        there[gpu.report.uuid][atom.key]["id"]: atom.key
        for gpu in gpus
        if gpu.on_demand
        for atom in gpu.atoms
        if "migUuid" in atom.attributes and atom.key in there.get(gpu.report.uuid, {})
    }
    return {keys[each] for each in await bookings.booked_atoms(connection, list(keys), now)}


def _is_same(there: Mapping[str, Any], wanted: AtomSpec | None) -> bool:
    """Tell whether an atom is what it was: a slot of four is no slot of two, whatever its key."""
    return wanted is not None and wanted.share == Fraction(there["share_num"], there["share_den"])


def _is_recut(there: Mapping[str, Any] | None, wanted: Mapping[str, AtomSpec]) -> bool:
    """Tell whether a GPU that we knew is now cut otherwise than it was when last seen."""
    if there is None:
        return False
    return {key for key, row in there.items() if row["reason"] != MISSING} != set(wanted)


async def _let_go(
    connection: Connection, gone: Sequence[Mapping[str, Any]], now: datetime
) -> list[Mapping[str, Any]]:
    """Retire atoms that are no longer there, and return them.

    One that somebody has stays, unbookable, till then.
    """
    booked = await bookings.booked_atoms(connection, [atom["id"] for atom in gone], now)
    await connection.execute(_QUERIES["miss_atoms"], {"ids": sorted(booked), "reason": MISSING})
    retired = [atom for atom in gone if atom["id"] not in booked]
    ids = [atom["id"] for atom in retired]
    await connection.execute(_QUERIES["retire_atoms"], {"ids": ids, "now": now})
    return retired


async def _insert_atoms(
    connection: Connection, pool: PoolRecord, atoms: Sequence[tuple[int, AtomSpec]]
) -> None:
    await connection.execute(
        _QUERIES["insert_atoms"],
        {
            "tenant_id": pool.tenant_id,
            "pool_id": pool.id,
            "gpu_ids": [gpu for gpu, _ in atoms],
            "keys": [atom.key for _, atom in atoms],
            "classes": [atom.cls for _, atom in atoms],
            "units": [atom.units for _, atom in atoms],
            "boards": [atom.board for _, atom in atoms],
            "profiles": [atom.profile for _, atom in atoms],
            "starts": [atom.start for _, atom in atoms],
            "share_nums": [atom.share.numerator for _, atom in atoms],
            "share_dens": [atom.share.denominator for _, atom in atoms],
            "reasons": [atom.reason for _, atom in atoms],
            "attributes": [Jsonb(atom.attributes) for _, atom in atoms],
        },
    )


async def _update_atoms(
    connection: Connection, atoms: Sequence[tuple[Mapping[str, Any], AtomSpec]]
) -> None:
    changed = [
        (row["id"], atom)
        for row, atom in atoms
        if row["reason"] != atom.reason or row["attributes"] != atom.attributes
    ]
    await connection.execute(
        _QUERIES["update_atoms"],
        {
            "ids": [each for each, _ in changed],
            "reasons": [atom.reason for _, atom in changed],
            "attributes": [Jsonb(atom.attributes) for _, atom in changed],
        },
    )
