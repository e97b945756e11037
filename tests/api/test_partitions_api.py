"""A node that was granted a cut and says nothing is told of after a day."""

import pytest

from apportion.cli.doctor import _devices, _layouts
from apportion.partitions.service import Gate
from apportion.testing.builders import ask, device, pool_of
from apportion.testing.nodes import SimulatedNode

pytestmark = pytest.mark.anyio


async def test_the_doctor_names_nodes_that_are_stuck(with_client, runtime):
    """The server's clock stands long before the wall's, so a day has gone by."""

    def build(client):
        pool = client.create_pool(pool_of("H100", "mig", name="p", migLayout="all-1g.10gb"))
        client.join_node(pool.id, SimulatedNode("n1", "H100", layout="all-1g.10gb").inventory())
        assert [each.check for each in _layouts(client)] == ["layouts"]
        client.set_layout(pool.id, {"layout": "all-2g.20gb"})
        assert [each.result for each in _layouts(client)] == ["ok"]

    await with_client(build)
    await Gate(runtime).advance()
    [finding] = await with_client(lambda client: list(_layouts(client)))
    assert (finding.check, finding.result) == ("capacity.mig.stuck", "wrong")
    assert "1 nodes of p" in finding.text
    assert "n1" in finding.text


async def test_the_doctor_names_what_runs_without_its_device(with_client):
    def build(client):
        pool = client.create_pool(pool_of("H100", "mig", migLayout="dynamic"))
        node = SimulatedNode("n1", "H100")
        node_id = client.join_node(pool.id, node.inventory()).id
        node.read(client.get_spec(node_id))
        node.apply()
        client.report_node(node_id, node.report())
        held = client.create_reservation(ask(pool.id, device("gpu.mig", profile="3g.40gb")))
        assert [each.check for each in _devices(client)] == ["devices"]
        node.read(client.get_spec(node_id))
        node.converged = dict.fromkeys(node.spec.units, node.spec.generation)
        client.report_node(node_id, node.report())
        [finding] = _devices(client)
        assert (finding.check, finding.result) == ("capacity.device.missing", "wrong")
        assert f"{held.id}.0" in finding.text
        node.apply()
        client.report_node(node_id, node.report())
        assert [each.result for each in _devices(client)] == ["ok"]

    await with_client(build)
