"""A simulated machine joins a real server, makes what is reserved, hands it out, takes it back."""

import os
import subprocess
import sys

import pytest

from apportion.testing.builders import ask, device, pool_of
from apportion.testing.nvml import Simulation


@pytest.fixture
def agent(tmp_path):
    """Run the agent's commands on a simulated machine."""
    machine = Simulation.create(tmp_path / "machine", "dgx-h100")
    (tmp_path / "cdi").mkdir()
    own = {name: each for name, each in os.environ.items() if not name.startswith("APPORTION_")}
    places = {
        "APPORTION_AGENT_STATE": str(tmp_path / "agent"),
        "APPORTION_CDI_DIR": str(tmp_path / "cdi"),
    }

    def run(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", "apportion", "agent", *arguments, "--node", "dgx-1"],
            env={**own, **places, **machine.environment()},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_what_is_reserved_is_made_handed_out_and_taken_back(server, agent, tmp_path):
    policy = {"migLayout": "dynamic", "acceptance": [{"kind": "diag.nvml"}]}
    with server.client() as client:
        pool = client.create_pool(pool_of("H100", "mig", name="agents", **policy))
        token = client.create_join_token(pool.id, {"name": "m"}).token
        assert "agent run" in agent("join", "--server", client.url, "--token", token)
        agent("run", "--once")
        [node] = client.list_nodes(pool_id=pool.id).items
        assert (node.reason, node.health, node.gpus) == (None, "healthy", 8)
        assert node.accepted_at is not None
        held = client.create_reservation(
            ask(pool.id, device("gpu.mig", profile="3g.40gb"), duration="1h")
        )
        for _ in range(2):
            agent("run", "--once")
        [booking] = client.get_reservation(held.id).bookings
        assert booking.allocation.state == "ready"
        assert booking.attributes["migUuid"].startswith("MIG-")
        [spec] = (tmp_path / "cdi").iterdir()
        assert held.id in spec.name
        client.release_reservation(held.id)
        for _ in range(2):
            agent("run", "--once")
        assert list((tmp_path / "cdi").iterdir()) == []
        told = [event.type for event in client.list_events(subject=held.id).items]
        # That it has ended the clock says, at its next tick.
        assert {"reservation.device_bound", "reservation.device_released"} <= {*told}
        client.revoke_node(node.id)
