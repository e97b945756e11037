"""A node with a key of its own that says what a test has it say."""

from services_world import World

from apportion.authority.service import Caller
from apportion.nodes.schemas import EnrollRequest, JoinTokenCreate, NodeReport
from apportion.nodes.service import create_join_token as new_token
from apportion.nodes.service import enroll, get_node
from apportion.partitions.service import get_spec, take_report
from apportion.signatures import private_key, public_text
from apportion.testing.builders import gpu, inventory


class Node:
    """A node that has joined and reports, without a wire between."""

    def __init__(self, world: World, name):
        self.world, self.name, self.sequence = world, name, 0

    async def join(self, pool):
        issued = await new_token(
            self.world.runtime, self.world.caller, pool.id, JoinTokenCreate(name="m")
        )
        key = private_key(self.name.encode().ljust(32, b"."))
        request = {
            "evidence": {"token": issued.token},
            "public_key": public_text(key.public_key()),
            "inventory": self.inventory(),
        }
        told = await enroll(self.world.runtime, None, EnrollRequest.model_validate(request))
        self.id = told.node_id
        self.caller = Caller(
            "root",
            self.id,
            ancestors=("root",),
            node_id=self.id,
            node_key=key.public_key().public_bytes_raw(),
        )
        return self

    def inventory(self, **changes):
        document = inventory(
            self.name, gpu("H100", 0, node=self.name, **changes), agent="apportion"
        )
        return document.model_dump(mode="json", by_alias=True)

    async def report(self, **changes):
        self.sequence += 1
        spec = await get_spec(self.world.runtime, self.caller, self.id)
        document = {
            "sequence": self.sequence,
            "observed_generation": spec.generation,
            "converged": dict.fromkeys(spec.units, spec.generation),
            "inventory": self.inventory(),
            **changes,
        }
        report = NodeReport.model_validate(document)
        return await take_report(self.world.runtime, self.caller, self.id, report)

    async def view(self):
        return await get_node(self.world.runtime, self.world.caller, self.id)
