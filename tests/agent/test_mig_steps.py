"""What may be done next to a GPU: never to what is used, held or not ours; nothing over another."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from apportion.agent.mig.journal import Entry, Stage
from apportion.agent.mig.seen import Gpu, Hold, Instance
from apportion.agent.mig.steps import Create, Destroy, Reset, SwitchMode, plan_for
from apportion.agent.mig.wishes import Wanted, Wish, wish_for
from apportion.agent.nvml import ComputeInstance, Engines, Place, Profile
from apportion.geometry import board_by_key

BOARD = board_by_key("a100-sxm4-40gb")
PROFILES = {
    profile.name: Profile(
        number=number,
        id=number,
        name=profile.name,
        compute_slices=int(profile.name[0]),
        max_instances=7,
        sm_count=14 * int(profile.name[0]),
        memory_mib=1,
        engines=Engines(1, 0, 0, 0, 0),
        places=tuple(Place(each.start, each.size) for each in profile.placements),
    )
    for number, profile in enumerate(BOARD.profiles)
}
ALL = [(profile, place) for profile, found in PROFILES.items() for place in found.places]
GPU = Gpu(uuid="GPU-1", board=BOARD, mig=True, pending=True, needs_reset=True, profiles=PROFILES)


def device(number, sms=1000):
    return ComputeInstance(
        ci_id=0,
        uuid=f"MIG-{number}",
        profile="",
        compute_slices=1,
        sm_count=sms,
        memory_mib=4864,
    )


def instance(gi_id, profile="1g.5gb", start=0, *, fills=True, computes=None, pids=()):
    computes = (device(gi_id),) if computes is None else computes
    return Instance(
        gi_id=gi_id,
        profile=profile,
        place=next(each for each in PROFILES[profile].places if each.start == start),
        computes=computes,
        device=computes[0] if computes and fills else None,
        pids=pids,
    )


def entry(of, stage=Stage.CREATED, allocation_id=None):
    return Entry(
        gpu=GPU.uuid,
        profile=of.profile,
        start=of.place.start,
        stage=stage,
        allocation_id=allocation_id,
        gi_id=of.gi_id,
        uuid=of.computes[0].uuid if of.computes else None,
    )


def wish(*wanted, mig=True):
    return Wish(
        mig=mig,
        instances=tuple(
            Wanted(profile=profile, start=start, allocation_id=allocation)
            for profile, start, allocation in wanted
        ),
    )


def plan(gpu, wanted, ours=None, holds=(), mode_change="reset"):
    made = plan_for(gpu, wanted, ours or {}, holds, mode_change)
    return made.steps, [each.reason for each in made.waits]


@st.composite
def situations(draw):
    """Give a GPU with instances that do not overlap, what is ours of it, and what is wanted."""
    there, taken = [], set()
    for gi_id, (profile, place) in enumerate(draw(st.lists(st.sampled_from(ALL), max_size=7))):
        slices = set(range(place.start, place.start + place.size))
        if taken & slices:
            continue
        taken |= slices
        there.append(
            instance(
                gi_id,
                profile,
                place.start,
                fills=draw(st.booleans()),
                computes=draw(st.sampled_from([(), None])),
                pids=tuple(draw(st.lists(st.integers(1, 9), max_size=1))),
            )
        )
    names = st.sampled_from(["a", "b", None])
    ours = {
        each.gi_id: entry(each, draw(st.sampled_from(Stage)), draw(names))
        for each in there
        if draw(st.booleans())
    }
    wanted, taken = [], set()
    for profile, place in draw(st.lists(st.sampled_from(ALL), max_size=7)):
        slices = set(range(place.start, place.start + place.size))
        if not taken & slices:
            taken |= slices
            wanted.append((profile, place.start, draw(names)))
    on, pending = draw(st.booleans()), draw(st.booleans())
    gpu = replace(
        GPU,
        mig=on or bool(there),
        pending=pending,
        needs_reset=draw(st.booleans()),
        instances=tuple(there),
        pids=tuple(draw(st.lists(st.integers(1, 9), max_size=1))),
    )
    holds = [
        Hold(
            gpu=draw(st.sampled_from(["GPU-1", "GPU-2"])), start=draw(st.sampled_from([None, 0, 4]))
        )
        for _ in range(draw(st.integers(0, 2)))
    ]
    asked = draw(
        st.sampled_from([wish(*wanted), wish(*wanted), wish(mig=False), wish(mig=None), None])
    )
    return gpu, asked, ours, holds, draw(st.sampled_from(["never", "idle", "reset", "reboot"]))


@given(situations())
def test_no_step_touches_what_is_used_held_or_not_ours_and_nothing_is_made_over_another(situation):
    gpu, asked, ours, holds, mode_change = situation
    steps = plan_for(*situation).steps
    kept = [each for each in holds if each.gpu == gpu.uuid]
    gone = {each.instance.gi_id for each in steps if isinstance(each, Destroy)}
    for step in steps:
        match step:
            case Destroy():
                assert step.instance.gi_id in ours
                assert not step.instance.pids
                assert not [
                    each for each in kept if each.start in {None, step.instance.place.start}
                ]
            case SwitchMode():
                assert mode_change != "never" or gpu.mig == step.on
                if gpu.mig != step.on:
                    assert not gpu.pids
                    assert not kept
                assert gpu.pending != step.on or not gpu.needs_reset
            case Reset():
                assert mode_change in {"reset", "reboot"}
                assert not gpu.pids
                assert not kept
                assert set(gone) == {each.gi_id for each in gpu.instances}
            case Create():
                assert gpu.mig
    slices = [
        each
        for one in gpu.instances
        if one.gi_id not in gone
        for each in range(one.place.start, one.place.start + one.place.size)
    ]
    for step in steps:
        if isinstance(step, Create):
            slices += range(step.place.start, step.place.start + step.place.size)
    assert len(slices) == len(set(slices))
    if asked is None:
        assert not [each for each in gone if ours[each].stage is Stage.CREATED]


@given(situations())
def test_where_nothing_is_planned_and_nothing_waited_for_the_gpu_is_what_was_asked(situation):
    gpu, asked, ours, *_ = situation
    made = plan_for(*situation)
    if made.steps or made.waits or asked is None:
        return
    mine = {
        (each.profile, each.place.start, ours[each.gi_id].allocation_id)
        for each in gpu.instances
        if each.gi_id in ours
    }
    assert mine == {(each.profile, each.start, each.allocation_id) for each in asked.instances}
    if asked.mig is not None:
        assert gpu.mig is asked.mig


def test_an_instance_of_another_allocation_is_made_anew_for_the_next():
    there = instance(3)
    steps, waits = plan(
        replace(GPU, instances=(there,)),
        wish(("1g.5gb", 0, "second")),
        {3: entry(there, allocation_id="first")},
    )
    assert [type(each) for each in steps] == [Destroy, Create]
    assert waits == []


def test_instances_beside_those_that_change_stay():
    kept, going = instance(1, start=0), instance(2, start=1)
    steps, _ = plan(
        replace(GPU, instances=(kept, going), pids=(7,)),
        wish(("1g.5gb", 0, "a"), ("3g.20gb", 4, "b")),
        {1: entry(kept, allocation_id="a"), 2: entry(going, allocation_id="gone")},
    )
    assert [each.instance.gi_id for each in steps if isinstance(each, Destroy)] == [2]
    assert [each.wanted.profile for each in steps if isinstance(each, Create)] == ["3g.20gb"]


def test_a_foreign_instance_is_told_of_where_it_is_in_the_way_and_only_there():
    foreign = instance(1, start=0)
    gpu = replace(GPU, instances=(foreign,))
    steps, waits = plan(gpu, wish(("3g.20gb", 0, "a"), ("1g.5gb", 6, "b")))
    assert [each.wanted.profile for each in steps] == ["1g.5gb"]
    assert waits == ["foreign_instance"]
    assert plan(gpu, wish(mig=False)) == ([], ["foreign_instance"])
    assert plan(gpu, wish(mig=None)) == ([], [])


def test_a_half_made_instance_is_destroyed_also_where_nothing_is_asked():
    half = instance(1, computes=())
    gpu = replace(GPU, instances=(half,))
    [step], _ = plan(gpu, None, {1: entry(half, Stage.CREATING)})
    assert isinstance(step, Destroy)
    steps, _ = plan(gpu, wish(("1g.5gb", 0, None)), {1: entry(half, Stage.CREATING)})
    assert [type(each) for each in steps] == [Destroy, Create]


def test_less_than_promised_is_told_and_left_for_whoever_judges_it():
    there = instance(1, computes=(device(1, sms=7),))
    gpu = replace(GPU, instances=(there,))
    assert plan(gpu, wish(("1g.5gb", 0, None)), {1: entry(there)}) == ([], ["delivered_less"])


def test_the_mode_is_switched_as_far_as_the_pool_lets():
    off = replace(GPU, mig=False, pending=False)
    ampere = [plan(off, wish(), mode_change=each) for each in ("never", "idle", "reset", "reboot")]
    assert ampere[:2] == [([], ["mode_change_not_allowed"]), ([], ["mode_change_needs_reset"])]
    assert ampere[2:] == [([SwitchMode(on=True)], [])] * 2
    assert plan(replace(off, pending=True), wish()) == ([Reset()], [])
    hopper = replace(off, needs_reset=False)
    assert plan(hopper, wish(), mode_change="idle") == ([SwitchMode(on=True)], [])
    assert plan(replace(hopper, pids=(4,)), wish()) == ([], ["gpu_in_use"])
    held = [Hold(gpu="GPU-1", start=None)]
    assert plan(hopper, wish(), holds=held) == ([], ["gpu_held"])


def test_a_mode_that_somebody_else_asked_for_is_taken_back():
    gpu = replace(GPU, pending=False)
    assert plan(gpu, wish()) == ([SwitchMode(on=True)], [])
    assert plan(gpu, wish(mig=None)) == ([], [])


def test_a_named_layout_is_there_wherever_its_instances_lie_and_whoever_made_them():
    unit = {"layout": "mixed:3g.20gb+1g.5gb", "mode_change": "idle"}
    there = (instance(1, "3g.20gb", 0), instance(2, "1g.5gb", 6))
    gpu = replace(GPU, instances=there)
    assert plan(gpu, wish_for(gpu, unit)) == ([], [])
    gpu = replace(GPU, instances=there[:1])
    assert plan(gpu, wish_for(gpu, unit)) == ([], ["foreign_instance"])
    steps, _ = plan(replace(gpu, instances=()), wish_for(gpu, unit))
    assert sorted(each.wanted.profile for each in steps) == ["1g.5gb", "3g.20gb"]


def test_a_layout_that_a_board_cannot_have_is_told():
    unit = {"layout": "all-9g.1gb", "mode_change": "idle"}
    assert plan(GPU, wish_for(GPU, unit)) == ([], ["impossible_layout"])


def test_a_gpu_that_cannot_do_mig_is_not_spoken_of():
    assert wish_for(replace(GPU, mig=None), {"layout": "all-1g.5gb"}) is None
    assert wish_for(GPU, {"layout": "dynamic", "gpus": []}) is None
