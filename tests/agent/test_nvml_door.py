"""The agent's door to the driver, over the simulated one."""

import os

import pytest
from nvml_world import child

from apportion.agent.nvml import DriverError, Event, MigMode, Place, open_driver, reset_gpu
from apportion.testing.nvml import Simulation

NVML_UNKNOWN = 999


@pytest.fixture
def door(on):
    """Give a function that opens the door to a machine of a kind: the machine, and the driver."""
    contexts = []

    def start(kind="dgx-h100"):
        machine = on(kind)
        contexts.append(open_driver())
        return machine, contexts[-1].__enter__()

    yield start
    for context in contexts:
        context.__exit__(None, None, None)


def in_mig_mode(driver, index=0):
    gpu = driver.uuid(index)
    driver.set_mig_mode(gpu, on=True)
    return gpu


def profile(driver, gpu, name):
    return next(each for each in driver.profiles(gpu) if each.name == name)


def make(driver, gpu, name, start):
    found = profile(driver, gpu, name)
    place = next(each for each in found.places if each.start == start)
    return driver.create_instance(gpu, found.id, place)


def test_without_a_driver_the_door_says_so(tmp_path):
    machine = Simulation.create(tmp_path / "m")
    code = """
from apportion.agent.nvml import DriverError, open_driver
try:
    with open_driver(): pass
except DriverError as error: print(error.reason)
"""
    (machine.folder / "state").unlink()
    out, err = child(machine, code).communicate(timeout=60)
    assert (out, err) == ("driver_not_loaded\n", "")


def test_an_instance_is_made_filled_seen_and_taken_away_and_twice_is_no_error(door):
    _, driver = door()
    gpu = in_mig_mode(driver)
    gi_id = make(driver, gpu, "3g.40gb", 4)
    made = driver.fill_instance(gpu, gi_id)
    [seen] = driver.instances(gpu)
    assert (seen.gi_id, seen.place, seen.computes) == (gi_id, Place(4, 4), (made,))
    assert seen.profile_id == profile(driver, gpu, "3g.40gb").id == 9
    assert (made.profile, made.sm_count, made.memory_mib) == ("3g.40gb", 60, 40448)
    assert driver.memory(made.uuid).total_mib == 40448
    for _ in range(2):
        driver.destroy_compute(gpu, gi_id, made.ci_id)
        driver.destroy_instance(gpu, gi_id)
    assert driver.instances(gpu) == ()
    with pytest.raises(DriverError) as refused:
        driver.memory(made.uuid)
    assert refused.value.reason == "not_found"


def test_every_compute_instance_of_a_gpu_instance_is_seen(door):
    machine, driver = door()
    gpu = in_mig_mode(driver)
    gi_id = make(driver, gpu, "4g.40gb", 0)
    import pynvml

    handle = pynvml.nvmlDeviceGetGpuInstanceById(pynvml.nvmlDeviceGetHandleByIndex(0), gi_id)
    for profile_id in (0, 1, 0):
        pynvml.nvmlGpuInstanceCreateComputeInstance(handle, profile_id)
    machine.hold(0, 42, used_bytes=3 << 20, gpu_instance=gi_id, compute=1)
    [seen] = driver.instances(gpu)
    assert [each.profile for each in seen.computes] == ["1c.4g.40gb", "2c.4g.40gb", "1c.4g.40gb"]
    [process] = driver.processes(gpu)
    assert (process.pid, process.gi_id, process.ci_id, process.used_mib) == (42, gi_id, 1, 3)
    assert driver.processes(seen.computes[0].uuid) == ()
    with pytest.raises(DriverError) as refused:
        driver.destroy_compute(gpu, gi_id, 1)
    assert refused.value.reason == "in_use"


def test_a_place_that_is_taken_and_one_that_is_not_there_are_told_apart(door):
    _, driver = door()
    gpu = in_mig_mode(driver)
    make(driver, gpu, "1g.10gb", 0)
    for place, reason in (
        (Place(0, 1), "insufficient_resources"),
        (Place(7, 1), "invalid_argument"),
    ):
        with pytest.raises(DriverError) as refused:
            driver.create_instance(gpu, 19, place)
        assert refused.value.reason == reason


def test_a_mode_that_is_only_pending_is_an_error_that_says_what_is_missing(door):
    machine, driver = door("a100x8")
    gpu = driver.uuid(0)
    assert driver.mig_mode(gpu) == MigMode(current=False, pending=False, needs_reset=True)
    assert driver.profiles(gpu) == ()
    with pytest.raises(DriverError) as refused:
        driver.set_mig_mode(gpu, on=True)
    assert refused.value.reason == "reset_required"
    assert driver.mig_mode(gpu) == MigMode(current=False, pending=True, needs_reset=True)
    machine.reset(0)
    assert driver.mig_mode(gpu) == MigMode(current=True, pending=True, needs_reset=True)
    assert len(driver.profiles(gpu)) == 7


def test_a_gpu_without_mig_has_neither_mode_nor_profiles_nor_instances(door):
    _, driver = door("l4x2")
    gpu = driver.uuid(0)
    assert (driver.mig_mode(gpu), driver.profiles(gpu), driver.instances(gpu)) == (None, (), ())


def test_resetting_needs_nobody_on_the_gpu(door, monkeypatch):
    machine, driver = door("a100x8")
    gpu = driver.uuid(0)
    for name, value in machine.environment().items():
        monkeypatch.setenv(name, value)
    with pytest.raises(DriverError):
        driver.set_mig_mode(gpu, on=True)
    machine.hold(0, 42)
    with pytest.raises(DriverError) as refused:
        reset_gpu(gpu)
    assert refused.value.reason == "in_use"
    machine.leave(42)
    reset_gpu(gpu)
    assert driver.mig_mode(gpu).current
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(DriverError) as refused:
        reset_gpu(gpu)
    assert refused.value.reason == "not_supported"


def test_errors_that_come_while_listening_are_told_once_also_of_a_gpu_that_is_gone(door):
    machine, driver = door()
    uuids = [driver.uuid(index) for index in range(8)]
    machine.xid(0, 31)
    watch = driver.watch()
    machine.xid(2, 94, gpu_instance=3, compute=0)
    machine.lose(5)
    assert watch.next() == Event(gpu=uuids[2], xid=94, gi_id=3, ci_id=0)
    assert watch.next() == Event(gpu=uuids[5], xid=79, gi_id=None, ci_id=None)
    assert watch.next() is None
    watch.close()


def test_the_driver_s_own_words_come_with_an_error(door):
    machine, driver = door()
    machine.fail("nvmlDeviceGetMinorNumber", NVML_UNKNOWN)
    with pytest.raises(DriverError, match=r"nvmlDeviceGetMinorNumber: .*\(999\)") as refused:
        driver.facts(driver.uuid(0))
    assert refused.value.reason == "driver_error"


def test_memory_and_its_errors(door):
    machine, driver = door()
    gpu = driver.uuid(0)
    machine.hold(0, 42, used_bytes=100 << 20)
    machine.uncorrectable_error(0)
    memory, health = driver.memory(gpu), driver.memory_health(gpu)
    assert (memory.total_mib, memory.reserved_mib, memory.used_mib) == (81559, 512, 100)
    assert (health.ecc, health.corrected, health.uncorrected) == (True, 0, 1)
    assert (health.retirement_pending, health.remap_failed) == (True, False)


def test_links_and_nearness(door):
    _, driver = door("a30x4")
    gpu = driver.uuid(3)
    links = driver.links(gpu)
    assert {(link.up, link.remote, link.address) for link in links} == {
        (True, "gpu", driver.facts(driver.uuid(2)).pci_address)
    }
    assert (len(links), driver.numa_node(gpu)) == (4, 1)
    assert driver.versions().cuda == "13.0"


def test_the_compute_mode_is_set_and_read(door):
    _, driver = door()
    gpu = driver.uuid(0)
    driver.set_compute_mode(gpu, 3)
    assert driver.compute_mode(gpu) == 3
