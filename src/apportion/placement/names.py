"""Nodes by the names that point at one of them: its own, its GPUs' and their instances' UUIDs."""

from collections.abc import Iterator
from typing import Final

from apportion.placement.asks import Ask
from apportion.placement.state import NodeState

_NAMING: Final = ("node", "gpuUuid", "migUuid")


class Names:
    """Finds the nodes that an ask names, so that the others need not be looked at."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[str, str], set[int]] = {}

    def add(self, node: NodeState) -> None:
        """Take a node in."""
        for name in _names(node):
            self._nodes.setdefault(name, set()).add(node.id)

    def remove(self, node: NodeState) -> None:
        """Take a node out."""
        for name in _names(node):
            nodes = self._nodes.get(name, set())
            nodes.discard(node.id)
            if not nodes:
                self._nodes.pop(name, None)

    def named(self, ask: Ask) -> list[int] | None:
        """Return the only nodes that one of the devices can lie on; None where none is named."""
        for device in ask.devices:
            for each in device.selector.on_atom:
                if each.op == "In" and each.key in _NAMING:
                    found = [self._nodes.get((each.key, value), set()) for value in each.values]
                    return sorted(set[int]().union(*found))
        return None


def _names(node: NodeState) -> Iterator[tuple[str, str]]:
    for gpu in node.gpus:
        for shown in (gpu.shown_of(None), *map(gpu.shown_of, gpu.atoms)):
            for key in _NAMING:
                if key in shown:
                    yield key, str(shown[key])
