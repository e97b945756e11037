"""What every node has free, whoever placed it: the replay's own books, which refuse nonsense."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.replay.rules import Need, State, fits
from bench.replay.trace import WHOLE, Node, Task


@dataclass(frozen=True, slots=True)
class Lease:
    """A task on some GPUs of a node, all by their position."""

    task: Task
    node: int
    gpus: tuple[int, ...]
    holder: str = ""


class Rooms:
    """The free CPU, memory and GPUs of each node."""

    def __init__(self, fleet: Sequence[Node]) -> None:
        self.memory = [node.memory for node in fleet]
        self._models = [node.model for node in fleet]
        self._cpu = [node.cpu for node in fleet]
        self._gpus = [[WHOLE] * node.gpus for node in fleet]

    def state(self, node: int) -> State:
        """Return what rules see of a node."""
        return State(self._models[node], self._cpu[node], tuple(sorted(self._gpus[node])))

    def takes(self, node: int, task: Task) -> bool:
        """Tell whether a node has room for a task."""
        return (
            (not task.models or self._models[node] in task.models)
            and task.memory <= self.memory[node]
            and fits(self.state(node), Need(task.cpu, task.gpus, task.milli))
        )

    def find(self, node: int, task: Task, free: int) -> tuple[int, ...]:
        """Return the GPUs of a node that have just so much free, as many as the task wants."""
        fitting = [at for at, each in enumerate(self._gpus[node]) if each == free]
        return tuple(fitting[: task.gpus])

    def take(self, lease: Lease) -> None:
        """Note a task; a node or GPU that would be over-full stops the run."""
        self._change(lease, -1)
        assert len(set(lease.gpus)) == lease.task.gpus, lease
        assert min(self._cpu[lease.node], self.memory[lease.node]) >= 0, lease
        assert all(self._gpus[lease.node][at] >= 0 for at in lease.gpus), lease

    def give(self, lease: Lease) -> None:
        """Note that a task has gone."""
        self._change(lease, 1)

    def _change(self, lease: Lease, sign: int) -> None:
        self._cpu[lease.node] += sign * lease.task.cpu
        self.memory[lease.node] += sign * lease.task.memory
        for at in lease.gpus:
            self._gpus[lease.node][at] += sign * lease.task.milli
