"""Gangs whose members want each other's places: all of them get one where there is a way."""

from placement_builders import gpu, node, one_of, pool, profile, share, shared, slots, whole

from apportion.placement import Ask, AtomState, DeviceAsk, Held, Selector, Verdict

WHOLE = DeviceAsk("gpu")


def gang(index, *asks, apart=False, policy="fragmentation"):
    return index.place_gang(asks, 0, 24, 0, policy, apart=apart)


def test_pieces_that_belong_apart_leave_the_next_member_room_for_its_own():
    # The tightest fit, one slot of each of the two small GPUs, leaves a pair on one GPU only.
    index = pool(node(1, gpu(1, ruler=2), gpu(2, ruler=1), gpu(3, ruler=1)))
    first, second = gang(index, *[Ask((slots(1, 2),), apart=True)] * 2, policy="best")
    for offer in (first, second):
        assert len({piece.gpu for piece in offer.pieces}) == 2
    taken = [(piece.gpu, piece.units) for offer in (first, second) for piece in offer.pieces]
    assert len(set(taken)) == 4


def test_hundredths_of_several_gpus_leave_the_next_member_a_gpu_of_its_own():
    index = pool(node(1, shared(1), shared(2), shared(3)))
    for number, units in ((2, 60), (3, 60)):
        index.book(number, ("held", 0), _held(units))
    answer = gang(index, *[Ask((share(40, 2),))] * 2)
    assert not isinstance(answer, Verdict)


def test_unlike_members_fit_whichever_is_asked_for_first():
    index = pool(node(1, whole(1), vcpu=1000), node(2, whole(2), vcpu=4000))
    small, large = Ask((WHOLE,), 500), Ask((WHOLE,), 3000)
    for members in ((small, large), (large, small)):
        answer = gang(index, *members, policy="first")
        assert {offer.node for offer in answer} == {1, 2}
    assert isinstance(gang(index, large, large), Verdict)


def test_members_apart_change_places_so_that_each_has_a_node():
    index = pool(node(1, whole(1)), node(2, whole(2, group={"gpuModel": "A100"})))
    any_gpu, a100 = Ask((WHOLE,)), Ask((DeviceAsk("gpu", selector=_model("A100")),))
    for policy in ("first", "best", "spread", "fragmentation"):
        first, second = gang(index, any_gpu, a100, apart=True, policy=policy)
        assert (first.node, second.node) == (1, 2)
    waits = gang(index, any_gpu, any_gpu, a100, apart=True)
    assert waits.placed == 2
    assert sum(each.count for each in waits.reasons) == 2


def test_instances_made_on_demand_leave_room_for_those_that_need_it():
    places = [("1g", 1, at) for at in range(7)] + [("4g", 4, 0), ("3g", 4, 4)]
    atoms = tuple(
        AtomState(number, ((1 << size) - 1) << at, name, {"migProfile": name})
        for number, (name, size, at) in enumerate(places)
    )
    index = pool(node(1, gpu(1, "mig", 8, atoms=atoms)))
    members = [Ask((profile(name),)) for name in ("1g", "3g", "1g", "1g", "1g")]
    for policy in ("first", "best", "spread", "fragmentation"):
        answer = gang(index, *members, policy=policy)
        taken = [piece.units for offer in answer for piece in offer.pieces]
        assert sum(taken) == 0b1111_1111
    assert isinstance(gang(index, *members, Ask((profile("1g"),))), Verdict)


def test_what_is_too_intricate_is_not_said_to_have_no_room(monkeypatch):
    monkeypatch.setattr("apportion.placement.arranging.STEPS_MAX", 3)
    index = pool(node(1, gpu(1, ruler=2), gpu(2, ruler=1), gpu(3, ruler=1)), node(2, whole(9)))
    answer = gang(index, *[Ask((slots(1, 2),), apart=True)] * 2, policy="best")
    assert [(each.code, each.count) for each in answer.reasons] == [
        ("search_exhausted", 1),
        ("class_not_offered", 1),
    ]
    assert answer.placed == 1
    assert not index.gpu(1).held


def _held(units):
    return Held(0, 24, ((1 << units) - 1) | 1 << 100)


def _model(name):
    return Selector((one_of("gpuModel", name),))
