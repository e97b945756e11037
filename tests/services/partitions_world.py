"""A pool of simulated nodes between which and the server a test carries specs and reports."""

from datetime import timedelta

from apportion.partitions.service import get_spec, take_report
from apportion.pools.schemas import PoolUpdate
from apportion.pools.service import get_pool, update_pool
from apportion.testing.builders import ask, device
from apportion.testing.nodes import SimulatedNode

HOUR = timedelta(hours=1)
SMALL, LARGE = "all-1g.10gb", "mixed:2x3g.40gb"
NOTHING = {"assignments": [], "release": {"grace_seconds": 0, "reset": False}}


class Nodes:
    """A pool of simulated nodes, and what happens between them and the server."""

    def __init__(self, world, pool):
        self.world, self.pool = world, pool
        self.nodes, self.ids = {}, {}

    async def join(self, *names, gpus=2, layout=SMALL, agent="simulated", converged=True):
        for name in names:
            node = SimulatedNode(name, "H100", gpus=gpus, layout=layout, agent=agent)
            [self.ids[name]] = await self.world.report(self.pool, node.inventory())
            self.nodes[name] = node
            if agent is not None and converged:
                await self.converge(name)

    async def spec(self, name):
        return await get_spec(self.world.runtime, self.world.caller, self.ids[name])

    async def deliver(self, name, report):
        world = self.world
        return await take_report(world.runtime, world.caller, self.ids[name], report)

    async def converge(self, name):
        node = self.nodes[name]
        node.read(await self.spec(name))
        node.apply()
        return await self.deliver(name, node.report())

    async def change(self, **policy):
        pool = await get_pool(self.world.runtime, self.world.caller, self.pool.id)
        request = PoolUpdate(version=pool.version, policy=policy)
        await update_pool(self.world.runtime, self.world.caller, pool.id, request)

    async def states(self):
        rows = await self.world.rows(
            "SELECT name, state, granted, pending, hold_from, node_layouts.reason FROM node_layouts"
            " JOIN nodes ON id = node_id ORDER BY name"
        )
        return {row["name"]: row for row in rows}

    async def state(self, name="n1"):
        return (await self.states())[name]["state"]

    async def events(self, kind="node.mig"):
        rows = await self.world.rows(
            "SELECT type, data FROM events WHERE type LIKE %s ORDER BY id", f"{kind}%"
        )
        return [(row["type"].removeprefix("node.mig."), row["data"]) for row in rows]

    async def place(self, profile="1g.10gb", **window):
        return await self.world.create(
            ask(self.pool.id, device("gpu.mig", profile=profile), **window)
        )
