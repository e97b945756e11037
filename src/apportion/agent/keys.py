"""The node's own key: made once on the node, kept where only the agent can read it."""

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from apportion.agent.files import keep, read_if_there
from apportion.errors import InvalidStateError
from apportion.signatures import SEED_BYTES, PrivateKey, private_key

FILE: Final = "agent.key"
_OPEN_TO_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def own_key(state: Path, entropy: Callable[[int], bytes]) -> PrivateKey:
    """Return the node's key, and make it where there is none.

    Raises InvalidStateError for a file that others can read, or that holds no key: another one made
    in its place would be another node.
    """
    path = state / FILE
    kept = read_if_there(path)
    if kept is None:
        kept = entropy(SEED_BYTES).hex()
        keep(path, kept)
    elif path.stat().st_mode & _OPEN_TO_OTHERS:
        raise InvalidStateError(
            "others on this machine can read it, so it proves nothing",
            field="state",
            given=str(path),
            allowed="mode 0600",
            hint="Revoke the node, remove the file and join again",
        )
    try:
        seed = bytes.fromhex(kept.strip())
    except ValueError:
        seed = b""
    if len(seed) != SEED_BYTES:
        raise InvalidStateError(
            "holds no key",
            field="state",
            given=str(path),
            allowed=f"{SEED_BYTES} bytes in hexadecimal digits",
            hint="Revoke the node, remove the file and join again",
        )
    return private_key(seed)
