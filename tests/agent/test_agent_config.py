"""A node's own configuration: what it says is made so, and what it cannot say is refused."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from apportion.agent.driven import Places
from apportion.agent.machine import machine
from apportion.agent.own_layout import read_config
from apportion.errors import InvalidInputError

NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)


@pytest.fixture
def config(tmp_path):
    def write(text):
        path = tmp_path / "agent.yaml"
        path.write_text(text)
        return read_config(path, needed=True)

    return write


@pytest.mark.parametrize("text", ["", "migLayout: {}\n", "migLayout: {from: pool}\n"])
def test_a_file_that_says_nothing_of_its_own_leaves_it_to_the_pool(config, text):
    assert (config(text).cut, config(text).facts) == (None, {})


def test_only_a_file_that_was_named_has_to_be_there(tmp_path):
    missing = tmp_path / "none.yaml"
    assert read_config(missing, needed=False).cut is None
    with pytest.raises(InvalidInputError) as refused:
        read_config(missing, needed=True)
    assert (refused.value.field, refused.value.given) == ("config", str(missing))


@pytest.mark.parametrize(
    "text",
    [
        "migLayout: {from: node}",
        "migLayout: {from: pool, layout: all-1g.10gb}",
        "migLayout: {layout: all-1g.10gb}",
        "migLayout: {from: node, layout: Dynamic}",
        "migLayout: {from: node, layout: 'a b'}",
        "migLayout: {from: me, layout: all-1g.10gb}",
        "migLayout: {from: node, layout: all-1g.10gb, modeChange: sure}",
        "migLayuot: {}",
        "- 1",
        "{",
        "\x00",
    ],
)
def test_what_no_file_can_say_is_refused_with_what_it_can(config, text):
    with pytest.raises(InvalidInputError) as refused:
        config(text)
    assert refused.value.field == "config"
    assert str(refused.value)


def test_its_layout_is_made_and_told_whatever_the_spec_asks_for(config, on, tmp_path, monkeypatch):
    simulation = on("dgx-h100")
    for name in ("APPORTION_HOST_ROOT", "PATH"):
        monkeypatch.setenv(name, simulation.environment()[name])
    places = Places(state=tmp_path / "state", cdi_dir=tmp_path / "cdi")
    own = config("migLayout: {from: node, layout: 'mixed:2x3g.40gb'}")
    asked = {"layout": "all-1g.10gb", "mode_change": "idle"}
    with machine(places, "n1", None, lambda: NOW, own) as this:
        assert this.facts() == {"mig_layout": {"from": "node", "layout": "mixed:2x3g.40gb"}}
        for wanted in (asked, None):
            units = {unit.name: unit for unit in this.units()}
            assert units["mig-layout"].converge(wanted, NOW).done
            cut = [each["profile"] for each in this.observe()["gpus"][7]["mig"]["instances"]]
            assert cut == ["3g.40gb", "3g.40gb"]
        simulation.unload_driver()
        this.units()
        assert "mig_layout" in this.facts()


def test_a_described_machine_tells_of_its_layout_too(config, tmp_path):
    own = config("migLayout: {from: node, layout: all-1g.10gb, modeChange: reset}")
    assert own.cut == {"layout": "all-1g.10gb", "mode_change": "reset"}
    places = Places(state=tmp_path / "state", cdi_dir=tmp_path / "cdi")
    with machine(places, "n1", Path("document.json"), lambda: NOW, own) as this:
        assert (this.units(), this.facts()) == ((), own.facts)
