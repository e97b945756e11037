"""Whatever is asked of the simulated driver, in any order: a model without a driver says the same.

The model knows masks over the package's table, as bookings do; the driver counts slices and
engines. They must agree on what fits, on ids, and on what is gone.
"""

import shutil
import tempfile
from pathlib import Path

import pynvml
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from nvml_world import create, driving, fill, instances_of, mig_devices, placements_of

from apportion.geometry import board_by_key
from apportion.testing.nvml import MachineKind, Simulation
from apportion.testing.nvml import machines as known

MODELS = {
    "A100": known._A100_80,
    "A30": known._A30,
    "H100": known._H100,
    "H200": known._H200,
    "B200": known._B200,
    "RTX PRO 6000": known._RTX_PRO_6000,
}


class Driver(RuleBasedStateMachine):
    """One GPU in MIG mode, beside the model's picture of it."""

    model = known._H100

    @initialize()
    def start(self):
        self.folder = Path(tempfile.mkdtemp())
        kind = MachineKind(models=(self.model,), logical_cpus=8, memory_mib=1024)
        self.machine = Simulation.create(self.folder, kind)
        self.context = driving(self.machine)
        self.context.__enter__()
        self.gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        pynvml.nvmlDeviceSetMigMode(self.gpu, 1)
        self.machine.reset(0)
        pynvml.nvmlDeviceSetMigMode(self.gpu, 1)
        self.board = board_by_key(self.model.board)
        self.made = {}  # id → (profile, placement)
        self.handles = {}  # id → handle
        self.computes = {}  # id → (handle of the compute instance, UUID)
        self.held = {}  # id → pid
        self.uuids = set()

    def teardown(self):
        if hasattr(self, "context"):
            self.context.__exit__(None, None, None)
            shutil.rmtree(self.folder)

    def busy(self):
        mask = 0
        for _, place in self.made.values():
            mask |= place.mask
        return mask

    def fits(self, profile, place):
        alike = sum(profile is other for other, _ in self.made.values())
        return self.busy() & place.mask == 0 and alike < profile.max_instances

    @rule(data=st.data())
    def create_at_a_place(self, data):
        profile = data.draw(st.sampled_from(self.board.profiles))
        place = data.draw(st.sampled_from(profile.placements))
        if not self.fits(profile, place):
            with pytest.raises(pynvml.NVMLError_InsufficientResources):
                create(self.gpu, profile.id, place.start)
            return
        self.note(create(self.gpu, profile.id, place.start), profile, place)

    @rule(data=st.data())
    def create_anywhere(self, data):
        profile = data.draw(st.sampled_from(self.board.profiles))
        fitting = [place for place in profile.placements if self.fits(profile, place)]
        if not fitting:
            with pytest.raises(pynvml.NVMLError_InsufficientResources):
                create(self.gpu, profile.id)
            return
        handle = create(self.gpu, profile.id)
        start = pynvml.nvmlGpuInstanceGetInfo(handle).placement.start
        self.note(handle, profile, next(place for place in fitting if place.start == start))

    def note(self, handle, profile, place):
        whole = place.size == self.board.memory_slices
        number = next(n for n in range(0 if whole else 1, 99) if n not in self.made)
        assert pynvml.nvmlGpuInstanceGetInfo(handle).id == number
        self.made[number] = (profile, place)
        self.handles[number] = handle

    @precondition(lambda self: self.made)
    @rule(data=st.data())
    def fill_with_a_compute_instance(self, data):
        number = data.draw(st.sampled_from(sorted(self.made)))
        if number in self.computes:
            with pytest.raises(pynvml.NVMLError_InsufficientResources):
                fill(self.handles[number])
            return
        compute, device = fill(self.handles[number])
        uuid = pynvml.nvmlDeviceGetUUID(device)
        assert uuid not in self.uuids
        self.uuids.add(uuid)
        self.computes[number] = (compute, uuid)
        profile = self.made[number][0]
        attributes = pynvml.nvmlDeviceGetAttributes(device)
        assert attributes.computeInstanceSliceCount == profile.compute_slices
        assert profile.memory_mib in {None, attributes.memorySizeMB}
        assert profile.sm in {None, attributes.multiprocessorCount}

    @precondition(lambda self: self.computes)
    @rule(data=st.data())
    def use_or_leave(self, data):
        number = data.draw(st.sampled_from(sorted(self.computes)))
        if number in self.held:
            self.machine.leave(self.held.pop(number))
        else:
            self.held[number] = 1000 + number
            self.machine.hold(0, 1000 + number, gpu_instance=number, compute=0)

    @precondition(lambda self: self.computes)
    @rule(data=st.data())
    def destroy_a_compute_instance(self, data):
        number = data.draw(st.sampled_from(sorted(self.computes)))
        if number in self.held:
            with pytest.raises(pynvml.NVMLError_InUse):
                pynvml.nvmlComputeInstanceDestroy(self.computes[number][0])
            return
        handle, _ = self.computes.pop(number)
        pynvml.nvmlComputeInstanceDestroy(handle)
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlComputeInstanceDestroy(handle)

    @precondition(lambda self: self.made)
    @rule(data=st.data())
    def destroy(self, data):
        number = data.draw(st.sampled_from(sorted(self.made)))
        if number in self.computes:
            with pytest.raises(pynvml.NVMLError_InUse):
                pynvml.nvmlGpuInstanceDestroy(self.handles[number])
            return
        del self.made[number]
        pynvml.nvmlGpuInstanceDestroy(self.handles.pop(number))

    @rule()
    def restart_the_process(self):
        """Shut the library down: the old handles still name what they named."""
        pynvml.nvmlShutdown()
        pynvml.nvmlInit()

    @rule()
    def reset(self):
        if self.held:
            with pytest.raises(Exception, match="In use"):
                self.machine.reset(0)
            return
        self.machine.reset(0)
        for each in (self.made, self.handles, self.computes):
            each.clear()

    @invariant()
    def the_driver_lists_what_the_model_has(self):
        if not hasattr(self, "made"):
            return
        assert instances_of(self.gpu) == sorted(
            (number, profile.id, place.start, place.size)
            for number, (profile, place) in self.made.items()
        )
        assert {uuid for uuid in mig_devices(self.gpu) if uuid} == {
            uuid for _, uuid in self.computes.values()
        }

    @invariant()
    def possible_placements_do_not_depend_on_what_is_there(self):
        if not hasattr(self, "made"):
            return
        for profile in self.board.profiles:
            places = [(place.start, place.size) for place in profile.placements]
            assert placements_of(self.gpu, profile.id) == places


@pytest.mark.parametrize("name", MODELS)
def test_any_sequence_of_calls_ends_as_the_package_s_table_says(name):
    class OfModel(Driver):
        model = MODELS[name]

    run_state_machine_as_test(
        OfModel, settings=settings(max_examples=25, stateful_step_count=30, deadline=None)
    )
