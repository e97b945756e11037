"""Which node of the server's this machine is: a command can use only the GPUs that are here."""

import os
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from apportion.errors import InvalidInputError, InvalidStateError

if TYPE_CHECKING:
    from apportion.client import Client

VARIABLE: Final = "APPORTION_NODE"

_PAGE = 1000
_NAMED_MAX = 3


def this_node(environment: Mapping[str, str] = os.environ) -> str:
    """Return the name that nodes are known by: APPORTION_NODE, or else the host's own name."""
    return environment.get(VARIABLE) or socket.gethostname().partition(".")[0].casefold()


def pools_here(client: "Client", node: str, wanted: Sequence[str] | None) -> Sequence[str]:
    """Return the ids of the pools that this machine is in, of those wanted if any are named.

    Raises InvalidStateError where it is a node of none, with how to come to one, and
    InvalidInputError where several have a node of this name and none was named.
    """
    gpus = client.list_gpus(node=node, limit=_PAGE).items
    here = list(dict.fromkeys(gpu.pool_id for gpu in gpus))
    if wanted is None:
        if len(here) > 1:
            raise InvalidInputError(
                f"needed: several pools have a node {node}", field="--pool", allowed=", ".join(here)
            )
        found = here
    else:
        found = [pool for pool in wanted if pool in here]
    if not found:
        raise InvalidStateError(
            f"this machine ({node}) is no node of "
            + ("any pool" if wanted is None else "that pool")
            + ", and a command runs where its GPUs are",
            hint=_how_to_get_there(client, wanted or ()),
        )
    return found


def _how_to_get_there(client: "Client", pools: Sequence[str]) -> str:
    names = list(
        dict.fromkeys(
            gpu.node for pool in pools for gpu in client.list_gpus(pool_id=pool, limit=_PAGE).items
        )
    )
    more = "" if len(names) <= _NAMED_MAX else f" and {len(names) - _NAMED_MAX} more"
    some = f" ({', '.join(names[:_NAMED_MAX])}{more})" if names else ""
    return (
        f"Run it on one of its nodes{some}. Or reserve, log in to the node that `apportion reserve`"
        f' names, and there: eval "$(apportion env RESERVATION)". Where this machine is called'
        f" otherwise by the server, set {VARIABLE}"
    )
