"""Each holder gets exactly its device, and nobody gets one that is not there or another's."""

import re
import resource
import signal
import stat
import time
from datetime import timedelta
from pathlib import Path

import pytest
from holder_world import gi_of

from apportion.agent import devices
from apportion.agent.devices.finding import MISSING
from apportion.agent.devices.journal import Step
from apportion.agent.sharing.environment import pipe_directory

ROOT = Path(__file__).parents[2]


def test_an_instance_is_handed_out_with_the_parent_and_both_its_capabilities(handing):
    node = handing()
    node.mig()
    uuid = node.make("3g.40gb", 4)
    node.make("1g.10gb", 0)
    node.ask_mig("r.0", "3g.40gb", 4)
    outcome, told = node.told()
    assert outcome.done
    assert (told["r.0"]["state"], told["r.0"]["device"]["uuid"]) == ("bound", uuid)
    assert node.env("r.0") == {
        "NVIDIA_VISIBLE_DEVICES": uuid,
        "CUDA_VISIBLE_DEVICES": uuid,
        "APPORTION_ALLOCATION": "r.0",
        "APPORTION_RESERVATION": "r",
    }
    gi = gi_of(node, 4)
    minors = _minors(node.machine)
    assert node.nodes("r.0") == [
        ("/dev/nvidia0", 195, 0),
        *(
            (f"/dev/nvidia-caps/nvidia-cap{minors[name]}", 237, minors[name])
            for name in (f"gpu0/gi{gi}/access", f"gpu0/gi{gi}/ci0/access")
        ),
    ]
    [edits] = [each["containerEdits"] for each in node.spec("r.0")["devices"]]
    assert f"CUDA_VISIBLE_DEVICES={uuid}" in edits["env"]
    assert "NVIDIA_VISIBLE_DEVICES=void" in edits["env"]
    mode = (node.state / "env" / "r.0.env").stat().st_mode
    assert stat.S_IMODE(mode) == 0o600


def _minors(machine):
    text = (machine.root / "proc/driver/nvidia-caps/mig-minors").read_text()
    return {name: int(minor) for name, minor in (line.split() for line in text.splitlines())}


def test_nothing_is_handed_out_until_the_instance_exists(handing):
    node = handing()
    node.mig()
    node.make("3g.40gb", 0)
    node.ask_mig("r.0", "3g.40gb", 4)
    outcome, told = node.told()
    assert (outcome.done, outcome.reason, outcome.objects) == (False, "device-missing", ("r.0",))
    assert told["r.0"]["state"] == "waiting"
    assert "there is no 3g.40gb at slice 4" in told["r.0"]["message"]
    assert (node.env("r.0"), node.spec("r.0")) == (None, None)
    node.make("3g.40gb", 4)
    assert node.states() == {"r.0": "bound"}


def test_an_instance_that_was_made_for_another_is_not_it(handing):
    node = handing()
    node.mig()
    node.made[node.make("3g.40gb", 4)] = "q.0"
    node.ask_mig("r.0", "3g.40gb", 4)
    outcome, told = node.told()
    assert (outcome.reason, told["r.0"]["state"]) == ("device-missing", "waiting")
    assert "was made for q.0" in outcome.message


def test_a_whole_gpu_is_refused_while_a_part_is_held_and_a_part_while_the_whole_is(handing):
    node = handing()
    gpu = node.uuids[0]
    node.shared[gpu] = "timeslice"
    node.ask("part.0", "gpu.slot", share="1/4", slots=[1])
    assert node.states() == {"part.0": "bound"}
    node.ask("whole.0")
    outcome, told = node.told()
    assert (outcome.reason, outcome.objects) == ("held_by_another", ("whole.0",))
    assert (told["whole.0"]["state"], told["part.0"]["state"]) == ("waiting", "bound")
    assert "part.0" in told["whole.0"]["message"]
    del node.rows["part.0"]
    assert node.states() == {"part.0": "released", "whole.0": "bound"}
    node.ask("part.1", "gpu.slot", share="1/4", slots=[0])
    outcome, told = node.told()
    assert (outcome.reason, outcome.objects) == ("held_by_another", ("part.1",))
    node.ask("else.0", "gpu", gpu=1)
    assert node.states()["else.0"] == "bound"


def test_slots_and_hundredths_are_held_beside_each_other_as_far_as_there_are_any(handing):
    node = handing()
    for gpu in node.uuids[:2]:
        node.shared[gpu] = "timeslice"
    node.ask("a.0", "gpu.slot", share="1/4", slots=[0])
    node.ask("b.0", "gpu.slot", share="1/2", slots=[1, 2])
    node.ask("c.0", "gpu.slot", share="1/4", slots=[2])
    node.ask("d.0", "gpu.share", gpu=1, share="3/5", hundredths=60)
    node.ask("e.0", "gpu.share", gpu=1, share="2/5", hundredths=40)
    node.ask("f.0", "gpu.share", gpu=1, share="1/100", hundredths=1)
    outcome, told = node.told()
    states = {name: row["state"] for name, row in told.items()}
    bound = dict.fromkeys(("a.0", "b.0", "d.0", "e.0"), "bound")
    assert states == {**bound, "c.0": "waiting", "f.0": "waiting"}
    assert outcome.objects == ("c.0", "f.0")


def test_a_slot_waits_for_its_daemon_and_gets_its_pipe_and_limits(handing):
    node = handing()
    gpu = node.uuids[0]
    node.ask("r.0", "gpu.slot", share="1/4", slots=[0])
    outcome, _ = node.told()
    assert outcome.reason == "sharing_missing"
    assert node.env("r.0") is None
    node.shared[gpu] = "mps"
    assert node.states() == {"r.0": "bound"}
    pipe = str(pipe_directory(node.state, gpu))
    env = node.env("r.0")
    assert env["CUDA_MPS_PIPE_DIRECTORY"] == pipe
    assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"].startswith(f"{gpu}=")
    [device] = node.spec("r.0")["devices"]
    [mount] = device["containerEdits"]["mounts"]
    assert (mount["hostPath"], mount["containerPath"]) == (pipe, pipe)


def test_what_somebody_else_uses_is_not_handed_out(handing):
    node = handing()
    with node.holder("nobody") as stranger:
        node.ask("r.0")
        outcome, told = node.told()
        assert (outcome.reason, told["r.0"]["state"]) == ("in_use", "waiting")
        assert str(stranger.pid) in outcome.message
    assert node.states() == {"r.0": "bound"}


def test_an_instance_that_was_made_again_is_written_anew(handing):
    node = handing()
    node.mig()
    first = node.make("3g.40gb", 4)
    node.ask_mig("r.0", "3g.40gb", 4)
    node.converge()
    node.destroy()
    outcome, told = node.told()
    assert (outcome.reason, told["r.0"]["state"]) == ("device-missing", "waiting")
    assert (node.env("r.0"), node.spec("r.0")) == (None, None)
    node.make("1g.10gb", 0)
    second = node.make("3g.40gb", 4)
    assert first != second
    _, told = node.told()
    assert (told["r.0"]["state"], told["r.0"]["device"]["uuid"]) == ("bound", second)
    assert node.env("r.0")["CUDA_VISIBLE_DEVICES"] == second


def test_numbers_that_are_others_since_a_reboot_are_written_anew(handing):
    node = handing()
    node.mig()
    node.make("3g.40gb", 4)
    node.ask_mig("r.0", "3g.40gb", 4)
    node.converge()
    before = node.nodes("r.0")
    node.machine.reboot()
    outcome, told = node.told()
    assert (outcome.reason, told["r.0"]["state"]) == ("device-missing", "waiting")
    assert node.spec("r.0") is None
    node.mig()
    node.make("3g.40gb", 4)
    assert node.states() == {"r.0": "bound"}
    after = node.nodes("r.0")
    assert before[0] == after[0]
    assert before[1] != after[1]
    minors = _minors(node.machine)
    assert [minor for _, _, minor in after[1:]] == [
        minors[f"gpu0/gi{gi_of(node, 4)}/{name}"] for name in ("access", "ci0/access")
    ]


def test_capabilities_that_the_driver_does_not_list_are_named_and_nothing_is_handed_out(handing):
    node = handing()
    node.mig()
    node.make("3g.40gb", 4)
    gi = gi_of(node, 4)
    path = node.machine.root / "proc/driver/nvidia-caps/mig-minors"
    text = path.read_text()
    kept = [line for line in text.splitlines() if not line.startswith(f"gpu0/gi{gi}/")]
    path.write_text("\n".join(kept) + "\n")
    node.ask_mig("r.0", "3g.40gb", 4)
    outcome, told = node.told()
    assert (outcome.reason, told["r.0"]["state"]) == ("capability_missing", "waiting")
    assert f"gpu0/gi{gi}/access" in outcome.message
    assert f"gpu0/gi{gi}/ci0/access" in outcome.message
    assert (node.env("r.0"), node.spec("r.0")) == (None, None)
    path.write_text(text)
    assert node.states() == {"r.0": "bound"}


def test_fifty_at_once_are_all_handed_out_and_all_taken_back(handing):
    node = handing()
    places = [(gpu, start) for gpu in range(8) for start in range(7)][:50]
    for gpu in range(8):
        node.mig(gpu)
    for gpu, start in places:
        node.make("1g.10gb", start, gpu)
        node.ask_mig(f"r{gpu}.{start}", "1g.10gb", start, gpu=gpu)
    began = time.monotonic()
    outcome, told = node.told()
    assert outcome.done
    assert time.monotonic() - began < 20
    devices = {row["device"]["uuid"] for row in told.values()}
    assert len(devices) == 50
    capabilities = [node.nodes(name)[1:] for name in told]
    assert len({node for nodes in capabilities for node in nodes}) == 100
    node.rows.clear()
    assert set(node.states().values()) == {"released"}
    assert not list(node.cdi.iterdir())
    assert not list((node.state / "env").iterdir())


def test_a_full_disk_hands_nothing_out_and_takes_nothing_from_anybody(handing):
    node = handing()
    node.ask("r.0")
    node.converge()
    node.ask("q.0", gpu=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))
    try:
        outcome, told = node.told()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert (outcome.reason, outcome.objects) == ("state_not_written", ("q.0",))
    assert "File too large" in outcome.message
    assert (told["r.0"]["state"], told["q.0"]["state"]) == ("bound", "waiting")
    assert node.env("q.0") is None
    assert not [each for each in (node.state / "devices").iterdir() if each.suffix != ".json"]
    assert node.states() == {"r.0": "bound", "q.0": "bound"}


def test_what_was_released_is_told_for_a_while_and_can_be_had_again(handing):
    node = handing()
    node.ask("r.0")
    node.converge()
    row = node.rows.pop("r.0")
    assert node.states() == {"r.0": "released"}
    node.rows["r.0"] = row
    assert node.states() == {"r.0": "bound"}
    del node.rows["r.0"]
    node.converge()
    node.now += timedelta(minutes=11)
    assert node.states() == {}
    assert not list((node.state / "devices").iterdir())


def test_a_journal_that_nobody_can_read_stops_everything_and_tells_nothing(handing):
    node = handing()
    node.ask("r.0")
    node.converge()
    [path] = (node.state / "devices").iterdir()
    path.write_text("{")
    unit = node.unit()
    outcome = unit.converge({"assignments": []}, node.now)
    assert (outcome.reason, str(path) in outcome.message) == ("state_unreadable", True)
    assert unit.facts() == {}
    assert node.env("r.0") is not None


def test_every_reason_and_every_step_is_in_the_reference():
    source = Path(devices.__file__).parent
    code = "".join(path.read_text("utf-8") for path in source.glob("*.py"))
    reasons = set(re.findall(r'HeldUpError\(\s*"([a-z_-]+)"', code)) | {MISSING}
    text = (ROOT / "docs" / "reference" / "devices.md").read_text("utf-8")
    told = {
        word
        for cell in re.findall(r"^\| ([^|]+)\|", text, re.MULTILINE)
        for word in re.findall(r"`([^`]+)`", cell)
    }
    assert reasons | {step.value for step in Step} <= told
    waiting = text.split("## What keeps it waiting")[1]
    cells = re.findall(r"^\| (`[^|]+)\|", waiting, re.MULTILINE)
    assert {word for cell in cells for word in re.findall(r"`([^`]+)`", cell)} == reasons | {
        "driver_…"
    }


@pytest.mark.parametrize("name", ["../r", "r/0", ".r", "r.", ""])
def test_an_id_that_leads_out_of_its_directory_is_refused(handing, name):
    node = handing()
    node.ask(name)
    outcome = node.converge()
    assert outcome.reason == "bad_allocation_id"
    assert not node.cdi.exists()
