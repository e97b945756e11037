"""Instances that somebody made by hand: shown, and destroyed only where nobody minds."""

import json
from datetime import UTC, datetime
from fractions import Fraction

import pynvml
import pytest
from nvml_world import child, create, fill

from apportion.agent.alone import alone
from apportion.agent.devices.assignments import Assignment
from apportion.agent.devices.journal import Device, Record, Step
from apportion.agent.devices.journal import Journal as DeviceJournal
from apportion.agent.driven import MIG_JOURNAL, Places
from apportion.agent.foreign import destroy_foreign, list_foreign
from apportion.agent.identity import Identity, keep
from apportion.agent.machine import machine
from apportion.errors import InvalidStateError, NotFoundError

NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)
GPU_1G, GPU_3G = 19, 9
IDENTITY = Identity(
    url="http://127.0.0.1:1", node_id="node_1", pool_id="pool_1", cls="metal-host", server_key="k"
)


@pytest.fixture
def node(on, tmp_path, monkeypatch):
    """Have a machine whose agent made 1g.10gb at 0 of the first GPU; gives it and the state."""
    simulation = on("dgx-h100")
    for name in ("APPORTION_HOST_ROOT", "PATH"):
        monkeypatch.setenv(name, simulation.environment()[name])
    state = tmp_path / "state"
    with machine(Places(state=state, cdi_dir=tmp_path / "cdi"), "n1", None, lambda: NOW) as this:
        uuid = this.observe()["gpus"][0]["uuid"]
        wanted = [{"allocation_id": "res_a.0", "profile": "1g.10gb", "start": 0}]
        row = {"gpu": uuid, "mig": True, "instances": wanted}
        unit = next(each for each in this.units() if each.name == "mig-layout")
        keep(state, IDENTITY)
        assert unit.converge({"layout": "dynamic", "mode_change": "idle", "gpus": [row]}, NOW).done
    return simulation, state


def by_hand(profile, start, *, filled=True):
    """Make an instance as an operator would; returns its name."""
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    made = create(gpu, profile, start)
    if not filled:
        return f"{pynvml.nvmlDeviceGetUUID(gpu)}/gi{pynvml.nvmlGpuInstanceGetInfo(made).id}"
    return pynvml.nvmlDeviceGetUUID(fill(made)[1])


def names(state):
    return [each.name for each in list_foreign(state)]


def test_only_what_the_agent_did_not_make_is_listed_and_goes(node):
    _, state = node
    assert names(state) == []
    whole, half = by_hand(GPU_3G, 4), by_hand(GPU_1G, 2, filled=False)
    assert names(state) == [half, whole]
    before = (state / MIG_JOURNAL).read_bytes()
    for name in (whole, half):
        assert destroy_foreign(state, name).name == name
    assert names(state) == []
    assert (state / MIG_JOURNAL).read_bytes() == before
    with pytest.raises(NotFoundError):
        destroy_foreign(state, whole)


def test_what_the_agent_made_is_its_own_to_destroy(node):
    _, state = node
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    ours = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0))
    with pytest.raises(InvalidStateError, match="the agent made it"):
        destroy_foreign(state, ours)
    for ask in (list_foreign, lambda other: destroy_foreign(other, ours)):
        with pytest.raises(InvalidStateError) as refused:
            ask(state.parent / "other")  # it would take all for foreign
        assert refused.value.field == "state"


def test_nothing_is_taken_from_a_process(node):
    simulation, state = node
    name = by_hand(GPU_3G, 4)
    [found] = list_foreign(state)
    simulation.hold(0, 77, gpu_instance=found.instance.gi_id, compute=0)
    with pytest.raises(InvalidStateError, match="77"):
        destroy_foreign(state, name)
    simulation.leave(77)
    destroy_foreign(state, name)


@pytest.mark.parametrize(("start", "kept"), [(4, True), (None, True), (0, False)])
def test_nothing_is_taken_from_a_holder(node, start, kept):
    _, state = node
    name = by_hand(GPU_3G, 4)
    [found] = list_foreign(state)
    DeviceJournal(state / "devices").write(handed_out(found.gpu, start))
    if kept:
        with pytest.raises(InvalidStateError, match="handed out"):
            destroy_foreign(state, name)
        assert names(state) == [name]
    else:
        destroy_foreign(state, name)


def handed_out(gpu, start):
    """Give the record of a device that somebody has, as the unit `devices` keeps it."""
    assignment = Assignment(
        allocation_id="res_b.0",
        reservation_id="res_b",
        gpu=gpu,
        class_="gpu" if start is None else "gpu.mig",
        share=Fraction(1),
        begins=NOW,
        start=start,
    )
    device = Device(uuid="MIG-x", gpu_minor=0)
    return Record(assignment=assignment, step=Step.BOUND, at=NOW, boot_id="b", device=device)


def test_what_nobody_can_read_is_held_by_anybody(node):
    _, state = node
    name = by_hand(GPU_3G, 4)
    (state / "devices").mkdir(exist_ok=True)
    (state / "devices/res_c.0.json").write_text("{")
    with pytest.raises(InvalidStateError, match="cannot be read"):
        destroy_foreign(state, name)
    assert names(state) == [name]


def test_not_while_an_agent_is_at_work(node):
    _, state = node
    name = by_hand(GPU_3G, 4)
    with alone(state):
        assert names(state) == [name]
        with pytest.raises(InvalidStateError, match="another agent works there"):
            destroy_foreign(state, name)


def test_the_command_line_shows_and_destroys_them(node):
    simulation, state = node
    name = by_hand(GPU_3G, 4)

    def command(*words):
        code = f"from apportion.cli import main; raise SystemExit(main({list(words)!r}))"
        with child(simulation, code, stdin=-1) as process:
            out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    where = ("--state", str(state))
    code, out, _ = command("agent", "foreign", "list", *where, "-o", "json")
    [row] = json.loads(out)["items"]
    assert (code, row["name"], row["profile"], row["start"], row["processes"]) == (
        0,
        name,
        "3g.40gb",
        4,
        [],
    )
    assert command("agent", "foreign", "destroy", name, *where)[0] == 2  # nobody can be asked
    with alone(state):
        code, _, err = command("agent", "foreign", "destroy", name, *where, "--yes")
        assert (code, "Stop the agent" in err) == (1, True)
    code, out, _ = command("agent", "foreign", "destroy", name, *where, "--yes")
    assert (code, out) == (0, "3g.40gb at 4 is gone\n")
    assert command("agent", "foreign", "list", *where)[1] == "The agent made all that is here.\n"
