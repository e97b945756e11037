"""What an offer strands: free GPU beside a host that has nothing left for it."""

from placement_builders import node, share, shared

from apportion.placement import Ask, HostHeld, Offer, PoolIndex
from apportion.placement.cost import cost

ALWAYS = (0, 10**6)


def price(machine, ask):
    index = PoolIndex([machine])
    offer = index.place(ask, *ALWAYS, 0)
    assert isinstance(offer, Offer)
    return cost(machine, ask, offer)


def four_gpus(node_id=1, **host):
    return node(node_id, *(shared(10 * node_id + at) for at in range(4)), **host)


def test_taking_gpu_and_cpu_in_the_proportion_of_the_build_strands_nothing():
    machine = four_gpus(vcpu=40_000, memory=40_000)
    assert price(machine, Ask((share(100),), 10_000, 10_000)) == (0, 0)


def test_cpu_alone_strands_the_gpus_that_it_was_built_for():
    machine = four_gpus(vcpu=40_000, memory=40_000)
    assert price(machine, Ask((), 20_000, 0)) == (20, 0)


def test_a_task_that_needs_little_cpu_takes_back_what_was_stranded():
    machine = four_gpus(vcpu=40_000, memory=40_000)
    machine.put("others", HostHeld(*ALWAYS, 20_000, 0))
    assert price(machine, Ask((share(100),), 0, 0))[0] == -10


def test_the_scarcer_of_cpu_and_memory_counts():
    machine = four_gpus(vcpu=40_000, memory=40_000)
    assert price(machine, Ask((), 4_000, 30_000))[0] == 30


def test_a_host_without_known_cpu_or_memory_strands_nothing():
    machine = four_gpus(vcpu=0, memory=0)
    assert price(machine, Ask((share(50),), 0, 0)) == (0, 50)


def test_among_equals_the_tighter_gpu_is_cheaper():
    machine = four_gpus(vcpu=400_000, memory=400_000)
    assert price(machine, Ask((share(81),))) < price(machine, Ask((share(50),)))
