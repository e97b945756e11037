"""A driver that comes after the agent, goes, or comes back: each round sees what there is."""

from datetime import UTC, datetime

import pytest

from apportion.agent.driven import Places
from apportion.agent.inventory import health
from apportion.agent.machine import machine

NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)
NOT_LOADED = 9
DRIVEN = ["gpu", "mig-layout", "gpu-sharing", "devices"]
WANTED = {
    "gpu": {"ecc": True},
    "mig-layout": {"layout": "all-1g.10gb", "mode_change": "idle"},
    "gpu-sharing": {"mode": "timeslice", "replicas": 2},
    "devices": {"assignments": []},
}


class Agent:
    """What of an agent matters here: the machine that it runs on."""

    def __init__(self, simulation, this):
        self.simulation, self.this = simulation, this

    def driver(self, *, gone):
        """Let the driver go, or come."""
        if gone:
            self.simulation.unload_driver()
        else:
            self.simulation.load_driver()

    def look(self, names=("gpu",)):
        """Go round once; gives the inventory, and the reason of each unit that is not done."""
        units = {unit.name: unit for unit in self.this.units()}
        said = {name: units[name].converge(WANTED[name], NOW) for name in names}
        return self.this.observe(), {name: each.reason for name, each in said.items()}


@pytest.fixture
def agent(on, tmp_path, monkeypatch):
    simulation = on("dgx-h100")
    for name in ("APPORTION_HOST_ROOT", "PATH"):
        monkeypatch.setenv(name, simulation.environment()[name])
    opened = []

    def start(*, gone=False):
        made = Agent(simulation, None)
        made.driver(gone=gone)
        places = Places(state=tmp_path / "state", cdi_dir=tmp_path / "cdi")
        opened.append(machine(places, "n1", None, lambda: NOW))
        made.this = opened[-1].__enter__()
        return made

    yield start
    for each in opened:
        each.__exit__(None, None, None)


def test_a_driver_that_comes_later_is_found_without_a_restart(agent):
    agent = agent(gone=True)
    for _ in range(2):
        document, reasons = agent.look(DRIVEN)
        assert health(document) == ("no_capacity", "no GPU can be used")
        assert (document["gpus"], document["driver"]) == ([], None)
        assert "Driver Not Loaded" in document["problems"][0]
        assert reasons == dict.fromkeys(DRIVEN, "no_driver")
    agent.driver(gone=False)
    document, reasons = agent.look()
    assert health(document) == ("healthy", None)
    assert (len(document["gpus"]), document["problems"], reasons) == (8, [], {"gpu": None})


def test_a_driver_that_goes_is_told_of_and_comes_back_whole(agent):
    agent = agent()
    cut = ["gpu", "mig-layout", "devices"]
    whole, reasons = agent.look(cut)
    assert set(reasons.values()) == {None}
    assert [places(gpu) for gpu in whole["gpus"]] == [list(range(7))] * 8
    agent.driver(gone=True)
    document, reasons = agent.look(DRIVEN)
    assert health(document)[0] == "no_capacity"
    assert {gpu["failed"] for gpu in document["gpus"]} == {"no_driver"}
    assert [gpu["uuid"] for gpu in document["gpus"]] == [gpu["uuid"] for gpu in whole["gpus"]]
    assert reasons == dict.fromkeys(DRIVEN, "no_driver")
    agent.driver(gone=False)
    document, reasons = agent.look(cut)
    assert (health(document), set(reasons.values())) == (("healthy", None), {None})
    # What went with the driver was made anew, and is known to be the agent's.
    assert [places(gpu) for gpu in document["gpus"]] == [list(range(7))] * 8


def places(gpu):
    return [each["start"] for each in gpu["mig"]["instances"] if each["managed"]]


def test_errors_are_heard_again_once_the_driver_is_back(agent):
    agent = agent()
    agent.look()
    agent.driver(gone=True)
    agent.look()
    agent.driver(gone=False)
    agent.look()
    agent.simulation.xid(3, 95)
    assert agent.look()[0]["gpus"][3]["failed"] == "xid 95"


def test_a_driver_that_only_stumbles_once_is_used_on(agent):
    agent = agent()
    agent.look()
    agent.simulation.fail("nvmlSystemGetDriverVersion", NOT_LOADED, times=1)
    document, reasons = agent.look(["gpu", "devices"])
    assert (health(document)[0], set(reasons.values())) == ("healthy", {None})


def test_what_the_spec_does_not_ask_for_needs_no_driver(agent):
    agent = agent(gone=True)
    assert all(unit.converge(None, NOW).done for unit in agent.this.units())
