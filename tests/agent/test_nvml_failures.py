"""What fails or does not answer is told as failed, known after a restart, and nothing else is."""

import shutil

import pynvml
import pytest
from inventory_world import checked, gpus_of

from apportion.agent.inventory import health
from apportion.agent.looking import GPUS_FILE, look
from apportion.agent.remembered import Remembered


def test_a_fatal_error_of_the_gpu_fails_it_until_it_is_reset_and_is_known_after_a_restart(agent):
    one = agent()
    one.machine.xid(2, 13)
    one.machine.xid(3, 95)
    document = one.document()
    assert [index for index, gpu in gpus_of(document).items() if gpu["failed"]] == [3]
    assert gpus_of(document)[3]["failed"] == "xid 95"
    assert [each["xid"] for each in gpus_of(document)[2]["xids"]] == [13]
    uuid = gpus_of(document)[3]["uuid"]
    assert health(document) == ("degraded", f"failed: {uuid}")
    again = one.restarted()
    assert gpus_of(again.document())[3]["failed"] == "xid 95"
    again.machine.reset(3)
    assert health(again.document()) == ("healthy", None)
    assert gpus_of(again.document())[3]["xids"] == []
    again.stop()


def test_an_error_that_came_while_nobody_listened_is_what_the_driver_wants_done(agent):
    one = agent()
    one.stop()
    one.machine.xid(3, 95)
    again = one.restarted()
    assert gpus_of(again.document())[3]["failed"] == "gpu_reset"
    again.machine.reset(3)
    assert health(again.document()) == ("healthy", None)
    again.stop()


def test_with_a_driver_that_cannot_say_an_error_counts_until_the_machine_starts_anew(agent):
    one = agent()
    one.machine.xid(3, 95)
    with one.machine.change() as machine:
        machine.gpus[3].recovery_action = 0
    for _ in range(2):
        assert gpus_of(one.document())[3]["failed"] == "xid 95"
    one.machine.reboot()
    again = one.restarted()
    assert health(again.document()) == ("healthy", None)
    again.stop()


def test_a_fatal_error_of_an_instance_fails_that_one_until_it_is_made_anew(agent):
    one = agent()
    devices = one.mig(0, ("1g.10gb", 0), ("1g.10gb", 1))
    one.machine.xid(0, 94, gpu_instance=2, compute=0)
    gpu = one.document()["gpus"][0]
    assert gpu["failed"] is None
    assert [each["failed"] for each in gpu["mig"]["instances"]] == [None, "xid 94"]
    assert health(one.document()) == ("degraded", f"failed: {devices[1]}")
    driver, uuid = one.driver, gpu["uuid"]
    driver.destroy_compute(uuid, 2, 0)
    driver.destroy_instance(uuid, 2)
    one.mig(0, ("1g.10gb", 1))
    gpu = one.document()["gpus"][0]
    assert [each["failed"] for each in gpu["mig"]["instances"]] == [None, None]
    assert gpu["xids"] == []


def test_a_lost_gpu_that_was_seen_is_told_as_failed_and_its_neighbours_are_not(agent):
    one = agent()
    whole = gpus_of(one.document())
    one.machine.lose(5)
    document = one.document()
    gpu = gpus_of(document)[5]
    assert (gpu["uuid"], gpu["failed"]) == (whole[5]["uuid"], "gpu_lost")
    assert document["problems"] == ["GPU 5 does not answer: gpu_lost"]
    assert [gpu for gpu in gpus_of(document).values() if gpu["failed"]] == [gpu]
    again = one.restarted()
    assert gpus_of(again.document())[5]["failed"] == "gpu_lost"
    again.machine.reboot()
    again = again.restarted()
    assert health(again.document()) == ("healthy", None)
    again.stop()


def test_a_gpu_that_was_never_seen_and_does_not_answer_is_a_problem_that_is_told(agent):
    one = agent()
    one.machine.lose(0)
    document = one.document()
    assert len(document["gpus"]) == 7
    assert health(document) == ("degraded", "GPU 0 does not answer: gpu_lost")


def test_a_gpu_that_was_taken_out_is_not_told_any_more(agent):
    one = agent()
    one.document()
    with one.machine.change() as machine:
        machine.gpu_count = 6
    document = one.document()
    assert len(document["gpus"]) == 6
    assert len(one.remembered.gpus) == 6


def test_a_gpu_that_stops_answering_in_the_middle_is_failed_and_the_others_are_told(agent):
    one = agent()
    one.machine.fail("nvmlDeviceGetMigMode", pynvml.NVML_ERROR_UNKNOWN, gpu=1)
    document = one.document()
    assert gpus_of(document)[1]["failed"] == "driver_error"
    assert sum(gpu["failed"] is not None for gpu in document["gpus"]) == 1


@pytest.mark.parametrize("function", ["nvmlDeviceGetCount_v2", "nvmlSystemGetDriverVersion"])
def test_a_driver_that_fails_altogether_is_told_as_none_and_its_gpus_as_failed(agent, function):
    one = agent()
    one.document()
    one.machine.fail(function, pynvml.NVML_ERROR_UNKNOWN)
    document = one.document()
    assert document["driver"] is None
    assert [gpu["failed"] for gpu in document["gpus"]] == ["no_driver"] * 8
    assert "(999)" in document["problems"][0]
    assert health(one.document()) == ("healthy", None)


def test_a_driver_that_fails_while_it_is_listened_to_is_listened_to_again(agent):
    one = agent()
    one.machine.xid(2, 95)
    one.machine.fail("nvmlEventSetWait_v2", pynvml.NVML_ERROR_GPU_IS_LOST)
    assert gpus_of(one.document())[2]["failed"] == "gpu_reset"  # the driver says it all the same
    assert gpus_of(one.document())[2]["failed"] == "xid 95"


def test_without_a_driver_there_is_no_capacity_and_gpus_that_were_seen_are_failed(
    agent, monkeypatch
):
    one = agent()
    one.document()
    monkeypatch.setenv("APPORTION_HOST_ROOT", str(one.machine.root))
    monkeypatch.setattr(
        "apportion.agent.looking.open_driver",
        lambda: (_ for _ in ()).throw(_driver_not_loaded()),
    )
    document = checked(look("n1", one.state))
    assert {gpu["failed"] for gpu in document["gpus"]} == {"no_driver"}
    assert health(document) == ("no_capacity", "no GPU can be used")
    assert document["problems"] == ["nvmlInit: Driver Not Loaded (9)"]
    document = checked(look("n1"))
    assert (document["gpus"], health(document)[0]) == ([], "no_capacity")


def _driver_not_loaded():
    from apportion.agent.nvml import DriverError

    return DriverError("driver_not_loaded", "nvmlInit: Driver Not Loaded (9)")


def test_what_is_remembered_outlives_a_file_that_nobody_can_read(tmp_path):
    path = tmp_path / "gpus.json"
    for content in (b"", b"{", b"[]", b'{"gpus": [{"uuid": 1}], "boot_id": "x"}', b"\xff\xff"):
        path.write_bytes(content)
        found = Remembered(path, "boot")
        assert (found.gpus, found.errors) == ({}, [])


def test_a_full_disk_keeps_nobody_from_saying_what_is_there(agent):
    one = agent()
    one.document()
    shutil.rmtree(one.state)
    one.machine.xid(0, 95)
    document = one.document()
    assert document["gpus"][0]["failed"] == "xid 95"
    assert document["problems"] == [
        "what is remembered of GPUs cannot be written: No such file or directory"
    ]
    one.state.mkdir()
    one.machine.xid(0, 48)
    assert one.document()["problems"] == []


def test_a_glance_at_what_is_remembered_changes_nothing(agent):
    one = agent()
    one.machine.xid(0, 95)
    one.document()
    before = (one.state / GPUS_FILE).read_bytes()
    found = Remembered.glance(one.state / GPUS_FILE, "another boot")
    assert (len(found.gpus), found.errors) == (8, [])
    found.forget(next(iter(found.gpus)))
    assert (one.state / GPUS_FILE).read_bytes() == before
