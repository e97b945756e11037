"""The inventory document: everything that there is to say about this machine, as of now."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from apportion.agent.differences import board_of, differences
from apportion.agent.host import numa_node, pcie_root, read_host
from apportion.agent.nvml import (
    Driver,
    DriverError,
    GpuFacts,
    GpuInstance,
    Link,
    MigMode,
    Profile,
    Versions,
)
from apportion.agent.remembered import CriticalError, Remembered

SCHEMA: Final = "apportion.inventory/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """An instance that the agent made, and for whom where it was for one allocation."""

    allocation_id: str | None


Makers = Callable[[str, GpuInstance], Made | None]
"""Tells of an instance of a GPU, by its UUID, whether the agent made it; None: somebody else."""
Links = Mapping[str, tuple[Link, ...]]

_Document = dict[str, Any]


def nobody_made(_gpu: str, _instance: GpuInstance) -> Made | None:
    """Tell of every instance that somebody else made it."""
    return None


def inventory(
    driver: Driver | None,
    remembered: Remembered,
    root: Path,
    *,
    node: str,
    agent: str | None = None,
    problem: str | None = None,
    made: Makers = nobody_made,
) -> _Document:
    """Return the document of the node of that name. OSError where the kernel does not answer.

    A GPU that does not answer is listed as failed, if it was ever seen; what else is wrong stands
    in ``problems``. Without a driver no GPU answers, and ``problem`` says why there is none; so it
    is where the driver itself fails.
    """
    host = read_host(root)
    problems = [] if problem is None else [problem]
    seen: list[GpuFacts] = []
    rows: list[_Document] = []
    tables: dict[str, tuple[Profile, ...]] = {}
    versions: Versions | None = None
    if driver is not None:
        try:
            versions = driver.versions()
            seen, problems = _look_around(driver, remembered)
        except DriverError as error:
            failed = error.message
            return inventory(None, remembered, root, node=node, agent=agent, problem=failed)
        links = {facts.uuid: _links(driver, facts) for facts in seen}
        rows = [
            _gpu(
                driver,
                remembered,
                root,
                facts,
                peers=_peers(facts, seen, links),
                made=made,
            )
            for facts in seen
        ]
        tables = {facts.product: table for facts in seen if (table := _profiles(driver, facts))}
    rows += [
        _silent(facts, "gpu_lost" if driver else "no_driver") for facts in _unseen(remembered, seen)
    ]
    return {
        "schema": SCHEMA,
        "node": node,
        "agent": agent,
        "boot_id": host.boot_id,
        "host": {
            "logical_cpus": host.logical_cpus,
            "memory_mib": host.memory_mib,
            "hugepages": host.hugepages,
        },
        "driver": None if versions is None else asdict(versions),
        "gpus": sorted(rows, key=lambda row: (row["index"], row["uuid"])),
        "mig_profiles": [
            {"product": product, "profiles": [_profile(each) for each in table]}
            for product, table in sorted(tables.items())
        ],
        "problems": problems + ([] if remembered.unwritten is None else [remembered.unwritten]),
    }


def health(document: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return how a node is by its document, and why: a node without a GPU to use is not healthy."""
    failed = [row["uuid"] for row in document["gpus"] if row["failed"] is not None]
    if len(failed) == len(document["gpus"]):
        return "no_capacity", "no GPU can be used"
    parts = [
        instance["uuid"] or f"{row['uuid']}/gi{instance['gi_id']}"
        for row in document["gpus"]
        for instance in row["mig"]["instances"]
        if instance["failed"] is not None
    ]
    if failed or parts:
        return "degraded", f"failed: {', '.join(failed + parts)}"
    if document["problems"]:
        return "degraded", "; ".join(document["problems"])
    return "healthy", None


def _look_around(driver: Driver, remembered: Remembered) -> tuple[list[GpuFacts], list[str]]:
    """Return the GPUs that answer, and what is to be said of those that do not.

    Where all answer, one that was seen before and is not among them was taken out.
    """
    seen: list[GpuFacts] = []
    silent: list[str] = []
    for index in range(driver.gpu_count()):
        try:
            facts = driver.facts(driver.uuid(index))
        except DriverError as error:
            silent.append(f"GPU {index} does not answer: {error.reason}")
        else:
            seen.append(facts)
            remembered.see(facts)
    if not silent:
        for gone in remembered.gpus.keys() - {facts.uuid for facts in seen}:
            remembered.forget(gone)
    return seen, silent


def _unseen(remembered: Remembered, seen: list[GpuFacts]) -> list[GpuFacts]:
    answered = {facts.uuid for facts in seen}
    return [facts for uuid, facts in remembered.gpus.items() if uuid not in answered]


def _silent(facts: GpuFacts, failed: str) -> _Document:
    return {
        "index": facts.index,
        "uuid": facts.uuid,
        "product": facts.product,
        "memory_mib": facts.memory_mib,
        "pci_address": facts.pci_address,
        "pci_device_id": facts.pci_device_id,
        "mig": {"current": False, "pending": False, "instances": []},
        "failed": failed,
    }


def _gpu(
    driver: Driver,
    remembered: Remembered,
    root: Path,
    facts: GpuFacts,
    *,
    peers: list[_Document],
    made: Makers,
) -> _Document:
    """Return what there is to say of one GPU; failed where the driver will not go on about it."""
    errors = [each for each in remembered.errors if each.gpu == facts.uuid]
    try:
        memory = driver.memory_health(facts.uuid)
        node = numa_node(root, facts.pci_address)
        return {
            **_silent(facts, ""),
            "minor": facts.minor,
            "pcie_root": pcie_root(root, facts.pci_address),
            "numa_node": driver.numa_node(facts.uuid) if node is None else node,
            "mig": _mig(driver, facts, errors, made),
            "nvlink": peers,
            "memory_health": asdict(memory),
            "xids": [
                {"xid": each.xid, "instance": each.instance, "at": each.at} for each in errors
            ],
            "processes": _processes(driver, facts.uuid),
            "differences": [
                asdict(each) for each in differences(board_of(facts), _profiles(driver, facts))
            ],
            "failed": _why_failed(
                errors, driver.recovery(facts.uuid), remap_failed=memory.remap_failed
            ),
        }
    except DriverError as error:
        return _silent(facts, error.reason)


def _why_failed(
    errors: list[CriticalError], recovery: str | None, *, remap_failed: bool
) -> str | None:
    """Return why a GPU cannot be used: an error that was heard, else what the driver says now.

    The driver says so also where the error came while nobody listened.
    """
    fatal = next((each for each in errors if each.fatal and each.instance is None), None)
    if fatal is not None:
        return f"xid {fatal.xid}"
    if recovery not in {None, "none"}:
        return recovery
    return "remap_failed" if remap_failed else None


def _mig(driver: Driver, facts: GpuFacts, errors: list[CriticalError], made: Makers) -> _Document:
    mode = driver.mig_mode(facts.uuid) or MigMode(current=False, pending=False, needs_reset=False)
    failed = {each.instance: f"xid {each.xid}" for each in errors if each.fatal}
    names = {each.id: each.name for each in _profiles(driver, facts)}
    return {
        "current": mode.current,
        "pending": mode.pending,
        "instances": [
            {
                **row,
                **_whose(made(facts.uuid, instance)),
                "failed": failed.get(row["uuid"]),
            }
            for instance in driver.instances(facts.uuid)
            for row in _rows(instance, names[instance.profile_id])
        ],
    }


def _whose(made: Made | None) -> _Document:
    return {
        "managed": made is not None,
        "allocation_id": None if made is None else made.allocation_id,
    }


def _rows(instance: GpuInstance, profile: str) -> Iterator[_Document]:
    """Give a row for each compute instance, and for a GPU instance without one: a half-made one."""
    place = {"gi_id": instance.gi_id, "start": instance.place.start, "size": instance.place.size}
    for each in instance.computes:
        yield {
            **place,
            "ci_id": each.ci_id,
            "uuid": each.uuid,
            "profile": each.profile,
            "memory_mib": each.memory_mib,
            "sm_count": each.sm_count,
        }
    if not instance.computes:
        yield {**place, "ci_id": None, "uuid": None, "profile": profile}


def _profiles(driver: Driver, facts: GpuFacts) -> tuple[Profile, ...]:
    try:
        return driver.profiles(facts.uuid)
    except DriverError:
        return ()


def _profile(profile: Profile) -> _Document:
    return {
        "id": profile.id,
        "name": profile.name,
        "compute_slices": profile.compute_slices,
        "max_instances": profile.max_instances,
        "memory_mib": profile.memory_mib,
        "sm_count": profile.sm_count,
        **profile.engines._asdict(),
        "placements": [{"start": place.start, "size": place.size} for place in profile.places],
    }


def _processes(driver: Driver, gpu: str) -> list[_Document]:
    """Say who uses a GPU. How much of it changes all the time, and is no part of an inventory."""
    return [
        {"pid": each.pid, "gi_id": each.gi_id, "ci_id": each.ci_id, "mps": each.mps}
        for each in driver.processes(gpu)
    ]


def _links(driver: Driver, facts: GpuFacts) -> tuple[Link, ...]:
    try:
        return tuple(link for link in driver.links(facts.uuid) if link.up)
    except DriverError:
        return ()


def _peers(facts: GpuFacts, seen: list[GpuFacts], links: Links) -> list[_Document]:
    """Say how many links lead from a GPU to each other one: directly, or through switches."""
    mine = Counter((link.remote, link.address) for link in links[facts.uuid])
    peers: list[_Document] = []
    for other in seen:
        if other.uuid == facts.uuid:
            continue
        theirs = Counter((link.remote, link.address) for link in links[other.uuid])
        switched = {each: count for each, count in mine.items() if each[0] == "switch"}
        count = mine["gpu", other.pci_address]
        count += sum(min(have, theirs[switch]) for switch, have in switched.items())
        if count:
            peers.append({"peer": other.uuid, "links": count})
    return peers
