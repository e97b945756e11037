"""Which GPUs of a node reach each other over NVLink: domains, from the links that it reports."""

from collections.abc import Iterable, Mapping
from typing import Any


def nvlink_domains(gpus: Iterable[Mapping[str, Any]]) -> dict[int, int]:
    """Return the domain of each GPU of one node that has a link: the least id of a GPU in it.

    ``gpus`` are rows with ``id``, ``uuid`` and ``nvlink``. Two GPUs are of one domain where a way
    of links leads from one to the other; a link that only one side reports counts.
    """
    rows = list(gpus)
    ids = {row["uuid"]: row["id"] for row in rows}
    domain = {row["id"]: row["id"] for row in rows}
    linked: set[int] = set()
    for row in rows:
        for peer in (ids.get(link["peer"]) for link in row["nvlink"]):
            if peer is None or peer == row["id"]:
                continue
            linked |= {row["id"], peer}
            one, other = domain[row["id"]], domain[peer]
            if one != other:
                least = min(one, other)
                domain = {gpu: least if of in (one, other) else of for gpu, of in domain.items()}
    return {gpu: of for gpu, of in domain.items() if gpu in linked}
