"""Where there is room in every window: nodes by the states of their GPUs and what hosts have left.

Nodes with a GPU in one state form a stock (see `orders`). A stock's nodes stand in cells by what
their host has left, so that a choice is made among states and grades, never by going through nodes,
and a change moves one node. Beside GPUs, nodes stand by their hosts alone, those apart whose GPUs
are of no use any more.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, Literal

from apportion.placement.asks import Ask, DeviceAsk, Together
from apportion.placement.hosts import Grade, Yardstick
from apportion.placement.models import HOST_FULL, NUMA, Model, Models, State
from apportion.placement.orders import ORDERS_KEPT, Cell, Group, Need, Order, Stock
from apportion.placement.places import Places
from apportion.placement.policies import Policy
from apportion.placement.selectors import Selector
from apportion.placement.state import GpuState, NodeState

Stand = tuple[tuple[GpuState, ...], Cell | None]
_NONE: Final[Stand] = ((), None)
_id: Final = attrgetter("id")


@dataclass(slots=True, eq=False)
class Standing:
    """Where a node stands: its place in the fleet's order, its host, the states of its GPUs.

    ``stands`` says of each state which GPUs are in it, in the order of their ids, and the cell that
    the node is in for it: none where nothing is free.
    """

    node: NodeState
    place: int
    grade: Grade
    host: int
    stands: dict[State, Stand] = field(default_factory=dict[State, Stand])
    alone: Cell | None = None

    def gpus(self, state: State) -> tuple[GpuState, ...]:
        """Return the GPUs in a state."""
        return self.stands[state][0]

    def pieces(self, order: Order) -> int:
        """Return how many pieces of an order its GPUs have room for at most."""
        units = order.need.units
        room = 0
        for state, (gpus, _) in self.stands.items():
            if order.choice(state) is not None:
                each = len(state.parts) if state.model.split == "mig" else state.free // units
                room += len(gpus) * each
        return room

    def hosts(self, ask: Ask) -> bool:
        """Tell whether the host has enough for an ask in every window."""
        node = self.node
        return (ask.vcpu_milli <= node.vcpu_free or not ask.vcpu_milli) and (
            ask.memory_mib <= node.memory_free or not ask.memory_mib
        )


class Shelves:
    """All GPUs of a pool that can be booked, by what is free of them."""

    def __init__(self, nodes: Iterable[NodeState] = ()) -> None:
        self.yardstick = Yardstick(nodes)
        self.standings: dict[int, Standing] = {}
        self.models = Models()
        self.mixing: set[int] = set()
        """Nodes with GPUs of more than one family."""
        self._places = Places[Standing]()
        self.at = self._places.at
        """Return the node that stands at a place."""
        self._stocks: dict[tuple[State, int], Stock] = {}
        self._orders: dict[tuple[Need, Policy], Order] = {}
        self._asked: dict[tuple[DeviceAsk, int, Policy, Together], Order] = {}
        self._interested: dict[Model, list[Order]] = {}
        # Of hosts alone: those beside GPUs that can be used, and those beside none.
        self._no_gpu = Models().of(GpuState(-1, "none", 1, {}, {}))
        self.beside = Stock(self._no_gpu.state(0), 0)
        self.apart = Stock(self._no_gpu.state(1), 0)

    # -- what there is -----------------------------------------------------------------------------

    def add(self, node: NodeState) -> None:
        """Put a node on the shelves where its GPUs belong."""
        if not node.healthy:
            return
        grade = self.yardstick.grade(node.vcpu_free, node.memory_free)
        host = min(*grade, HOST_FULL)
        standing = Standing(node, self._places.give(node.id), grade, host)
        self._places.put(standing.place, standing)
        self.standings[node.id] = standing
        for gpu in node.gpus:
            if gpu.bookable:
                gpu.standing = standing
                gpu.state = state = self.models.of(gpu).state_of(gpu)
                for each in state.stands:
                    gpus, _ = standing.stands.get(each, _NONE)
                    standing.stands[each] = (_with(gpus, gpu), None)
        if len({state.model.family for state in standing.stands}) > 1:
            self.mixing.add(node.id)
        self._enter(standing)

    def remove(self, node: NodeState) -> None:
        """Take a node off all shelves."""
        standing = self.standings.pop(node.id, None)
        if standing is not None:
            self.mixing.discard(node.id)
            self._leave(standing)
            self._places.give_back(standing.place)
            for gpu in node.gpus:
                gpu.standing = gpu.state = None

    def gpu_changed(self, gpu: GpuState) -> None:
        """Move the node of a GPU that has other room than before."""
        standing, before = gpu.standing, gpu.state
        if standing is None or before is None:
            return
        after = before.model.state_of(gpu)
        if after is before:
            return
        gpu.state = after
        stands = standing.stands
        for state in before.stands:
            gpus, cell = stands[state]
            if len(gpus) > 1:
                self._stand(
                    standing, state, cell, tuple([each for each in gpus if each is not gpu])
                )
                continue
            del stands[state]
            if cell is not None:
                self._vacate(cell, standing.place)
        for state in after.stands:
            gpus, cell = stands.get(state, _NONE)
            self._stand(standing, state, cell, _with(gpus, gpu))
        alone = standing.alone
        beside = alone is not None and alone.group.stock is self.beside
        if beside != bool(after.worths[standing.host]):
            self._stand_alone(standing)

    def host_changed(self, node: NodeState) -> None:
        """Move a node whose host has other CPU or memory free than before."""
        standing = self.standings.get(node.id)
        if standing is None:
            return
        grade = self.yardstick.grade(node.vcpu_free, node.memory_free)
        if grade != standing.grade:
            self._leave(standing)
            standing.grade, standing.host = grade, min(*grade, HOST_FULL)
            self._enter(standing)
            return
        for _, cell in standing.stands.values():
            if cell is not None:
                _widen(cell, node)
        if standing.alone is not None:
            _widen(standing.alone, node)

    # -- choosing ----------------------------------------------------------------------------------

    def order(
        self, device: DeviceAsk, pieces: int, policy: Policy, together: Together = "node"
    ) -> Order:
        """Return the order for pieces of a device ask, kept up from now on."""
        asked = (device, pieces, policy, together)
        found = self._asked.get(asked)
        if found is None:
            shared = Selector(device.selector.on_group)
            need = Need(device.cls, device.units, pieces, shared, _reach(shared, pieces, together))
            if len(self._asked) >= ORDERS_KEPT:
                self._forget_orders()
            found = self._asked[asked] = self._orders.get((need, policy)) or self._made(
                need, policy
            )
        return found

    def knows_all(self, order: Order) -> bool:
        """Tell whether an order of several pieces has every node on which they have room."""
        return not (order.parts_gpus or order.need.reach == "model" or self.mixing)

    def _forget_orders(self) -> None:
        self._asked.clear()
        self._orders.clear()
        self._interested.clear()
        for stock in self._stocks.values():
            for group in stock.groups.values():
                group.entered.clear()

    def _made(self, need: Need, policy: Policy) -> Order:
        made = self._orders[need, policy] = Order(need, policy)
        self._interested.clear()
        for stock in self._stocks.values():
            if made.takes(stock.state.model):
                for group in stock.groups.values():
                    made.enter(group)
        return made

    def candidates(self, order: Order, ask: Ask) -> Iterator[Standing]:
        """Yield the nodes with room for a piece of the order and the host's part; some twice."""
        enough = self.yardstick.enough(ask.vcpu_milli, ask.memory_mib)
        for _, groups in order.ascending():
            for group in list(groups):
                for cell in list(group.cells.values()):
                    yield from self.having(cell, ask, enough)

    def having(self, cell: Cell, ask: Ask, enough: Grade) -> Iterator[Standing]:
        """Yield the nodes of a cell whose hosts have enough, in order."""
        if cell.grade[0] >= enough[0] and cell.grade[1] >= enough[1]:
            for place in cell.keys:
                yield self.at(place)
            return
        if cell.vcpu_most < ask.vcpu_milli or cell.memory_most < ask.memory_mib:
            return
        vcpu_most = memory_most = 0
        for place in cell.keys:
            standing = self.at(place)
            vcpu_most = max(vcpu_most, standing.node.vcpu_free)
            memory_most = max(memory_most, standing.node.memory_free)
            if standing.hosts(ask):
                yield standing
        # All were looked at: what was only a bound is known now.
        cell.vcpu_most, cell.memory_most = vcpu_most, memory_most

    # -- keeping the order -------------------------------------------------------------------------

    def _enter(self, standing: Standing) -> None:
        for state, (gpus, _) in standing.stands.items():
            if state.free:
                stock = self._stock(state, len(gpus) if state.whole else 0)
                standing.stands[state] = (gpus, self._occupy(standing, stock))
        self._stand_alone(standing)

    def _leave(self, standing: Standing) -> None:
        for state, (gpus, cell) in standing.stands.items():
            if cell is not None:
                self._vacate(cell, standing.place)
                standing.stands[state] = (gpus, None)
        if standing.alone is not None:
            self._vacate(standing.alone, standing.place)
            standing.alone = None

    def _stand(
        self, standing: Standing, state: State, cell: Cell | None, gpus: tuple[GpuState, ...]
    ) -> None:
        """Have these GPUs of a node in a state; of wholly free ones each number has its cell."""
        if cell is not None and state.whole:
            self._vacate(cell, standing.place)
            cell = None
        if cell is None and state.free:
            stock = self._stock(state, len(gpus) if state.whole else 0)
            cell = self._occupy(standing, stock)
        standing.stands[state] = (gpus, cell)

    def _stock(self, state: State, idle: int) -> Stock:
        key = (state, idle)
        found = self._stocks.get(key)
        if found is None:
            found = self._stocks[key] = Stock(state, idle)
        return found

    def _stand_alone(self, standing: Standing) -> None:
        """Put a node where its host stands alone, by whether its GPUs are of use."""
        host = standing.host
        stock = self.apart
        for state in standing.stands:
            if state.worths[host]:
                stock = self.beside
                break
        alone = standing.alone
        if alone is not None:
            if alone.group.stock is stock:
                return
            self._vacate(alone, standing.place)
        standing.alone = self._occupy(standing, stock)

    def _occupy(self, standing: Standing, stock: Stock) -> Cell:
        group = stock.groups.get(standing.host)
        if group is None:
            group = stock.groups[standing.host] = Group(stock, standing.host)
            for order in self._orders_of(stock.state.model):
                order.enter(group)
        cell = group.add(standing.grade, standing.place)
        _widen(cell, standing.node)
        return cell

    def _vacate(self, cell: Cell, place: int) -> None:
        group = cell.group
        group.remove(cell, place)
        if not group.cells:
            del group.stock.groups[group.host]
            for order, tier in group.entered:
                order.leave(group, tier)

    def _orders_of(self, model: Model) -> list[Order]:
        if model is self._no_gpu:
            return []
        found = self._interested.get(model)
        if found is None:
            found = [order for order in self._orders.values() if order.takes(model)]
            self._interested[model] = found
        return found


def _with(gpus: tuple[GpuState, ...], gpu: GpuState) -> tuple[GpuState, ...]:
    """Add a GPU in the order of their ids."""
    if not gpus:
        return (gpu,)
    if gpus[-1].id < gpu.id:
        return (*gpus, gpu)
    return tuple(sorted((*gpus, gpu), key=_id))


def _reach(selector: Selector, pieces: int, together: Together) -> Literal["model", "node", "numa"]:
    if pieces == 1:
        return "model"
    if together == "numa":
        return "numa"
    return "model" if any(each.key == NUMA for each in selector.expressions) else "node"


def _widen(cell: Cell, node: NodeState) -> None:
    cell.vcpu_most = max(cell.vcpu_most, node.vcpu_free)
    cell.memory_most = max(cell.memory_most, node.memory_free)
