"""Short ways to do to a pool what examples are about: ask it for a place, and hold one."""

from apportion.placement import Ask, Held, HostHeld

HOURS = 24


def ask(*devices, vcpu=0, memory=0):
    return Ask(devices, vcpu, memory)


def place(index, *devices, at=(0, HOURS), now=0, vcpu=0, memory=0, policy="fragmentation"):
    return index.place(ask(*devices, vcpu=vcpu, memory=memory), *at, now, policy)


def book(index, gpu_id, holder, at, units):
    index.book(gpu_id, (holder, 0), Held(*at, units))


def book_host(index, node_id, holder, at, *, vcpu=0, memory=0):
    index.book_host(node_id, holder, HostHeld(*at, vcpu, memory))
