"""A node that was granted a cut and says nothing is told of after a day."""

import pytest

from apportion.cli.doctor import _layouts
from apportion.partitions.service import Gate
from apportion.testing.builders import pool_of
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
