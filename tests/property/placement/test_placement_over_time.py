"""Slots over time: what is never too much at any instant can be placed, however it arrives."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)
from placement_judge import HORIZON, SEATS, Booking, Gpu, HostBooking, Node, World
from placement_strategies import asks, windows, worlds

from apportion.placement import POLICIES, Ask, DeviceAsk, Offer
from apportion.placement.skyline import Skyline

spans = st.tuples(st.integers(0, 30), st.integers(1, 12), st.integers(1, 3))


def never_too_many(wanted, ruler, seats=SEATS):
    """Keep those of the (start, length, count) that leave no instant over-full."""
    kept = []
    for start, length, count in wanted:
        beside = [
            [c for s, n, c in kept if s <= now < s + n] for now in range(start, start + length)
        ]
        if all(sum(here) + count <= ruler and len(here) < seats for here in beside):
            kept.append((start, length, count))
    return kept


def place_all(world, cls, arrivals):
    """Place (now, start, end, count) in order; each has to be accepted and nothing may clash."""
    index = world.index()
    for number, (now, start, end, count) in enumerate(arrivals):
        ask = Ask((DeviceAsk(cls, 1, count),))
        offer = index.place(ask, start, end, now)
        assert isinstance(offer, Offer), (number, offer)
        world.check(offer, ask, now)
        world.apply(index, offer, ask, (start, end), f"r{number}")
    assert world.clashes() == []


@given(st.data(), st.lists(spans, min_size=2, max_size=30), st.integers(2, 5))
def test_slots_that_fit_at_every_instant_are_placed_in_any_order(data, wanted, ruler):
    kept = data.draw(st.permutations(never_too_many(wanted, ruler)))
    world = World((Node(0, (Gpu(0, "slots", ruler),)),))
    place_all(world, "gpu.slot", [(0, s, s + n, c) for s, n, c in kept])


@given(st.data(), st.lists(spans, min_size=2, max_size=30), st.integers(2, 5))
def test_slots_are_placed_also_when_bookings_begin_while_others_arrive(data, wanted, ruler):
    arriving = [(data.draw(st.integers(0, s)), s, s + n, c) for s, n, c in wanted]
    kept = set(never_too_many(wanted, ruler))
    possible = sorted(each for each in arriving if (each[1], each[2] - each[1], each[3]) in kept)
    unique = {each[1:]: each for each in reversed(possible)}
    world = World((Node(0, (Gpu(0, "slots", ruler),)),))
    place_all(world, "gpu.slot", sorted(unique.values()))


@given(st.data(), st.integers(0, 2**32))
def test_shares_that_fit_with_at_most_48_holders_are_placed_in_any_order(data, seed):
    random = data.draw(st.randoms(use_true_random=False))
    wanted = [
        (random.randrange(6), random.randrange(1, 6), random.choice((1, 2, 3))) for _ in range(90)
    ]
    kept = never_too_many(wanted, 100)
    random.shuffle(kept)
    world = World((Node(0, (Gpu(0, "shares", 100),)),))
    place_all(world, "gpu.share", [(0, s, s + n, c) for s, n, c in kept])


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6), st.integers(1, 4)), max_size=12),
    st.sets(st.integers(0, 11)),
    windows,
)
def test_a_skyline_knows_the_most_at_any_instant_of_a_window(added, removed, window):
    skyline = Skyline()
    for start, length, amount in added:
        skyline.add(start, start + length, amount)
    kept = [each for at, each in enumerate(added) if at not in removed]
    for start, length, amount in (each for at, each in enumerate(added) if at in removed):
        skyline.add(start, start + length, -amount)
    level = [sum(a for s, n, a in kept if s <= now < s + n) for now in range(20)]
    assert skyline.peak(*window) == max(level[slice(*window)])
    assert skyline.top == max(level)


class Days(RuleBasedStateMachine):
    """Reservations come, change and go as the clock runs; a plain list is the judge."""

    holders = Bundle("holders")

    @initialize(world=worlds(max_nodes=2))
    def open(self, world):
        self.world = world
        self.index = world.index()
        self.now = 0
        self.count = 0
        self.freed = self.index.freed

    @rule(target=holders, data=st.data(), window=windows)
    def reserve(self, data, window):
        start, end = self.now + window[0], self.now + window[1]
        ask = data.draw(asks(self.world))
        policy = data.draw(st.sampled_from(sorted(POLICIES)))
        answer = self.index.place(ask, start, end, self.now, policy)
        possible = any(self.world.fits(node, ask, start, end) for node in self.world.nodes)
        assert isinstance(answer, Offer) == possible
        holder = f"r{self.count}"
        self.count += 1
        if isinstance(answer, Offer):
            self.world.check(answer, ask, self.now)
            self.world.apply(self.index, answer, ask, (start, end), holder)
        return holder

    @rule(holder=consumes(holders))
    def release(self, holder):
        for booking in self._of(holder):
            self.world.bookings.remove(booking)
            self.index.free(booking.gpu, booking.key)
            self.index.free(booking.gpu, booking.key)
        for host in [h for h in self.world.hosts if h.holder == holder]:
            self.world.hosts.remove(host)
            self.index.free_host(host.node, holder)
            self.index.free_host(host.node, holder)

    @rule(holder=holders, sooner=st.integers(1, HORIZON))
    def end_early(self, holder, sooner):
        for booking in self._of(holder):
            end = max(booking.start + 1, self.now + 1, booking.end - sooner)
            if end < booking.end:
                self._replace(booking, end)
        for at, host in enumerate(self.world.hosts):
            if host.holder == holder:
                end = max(host.start + 1, min(self.now + 1, host.end))
                shorter = HostBooking(host.node, holder, host.start, end, host.vcpu, host.memory)
                self.world.hosts[at] = shorter
                self.index.book_host(host.node, holder, shorter.held())

    @precondition(lambda self: any(node.gpus for node in self.world.nodes))
    @rule(data=st.data(), window=windows)
    def hold_a_whole_gpu(self, data, window):
        gpus = [gpu for node in self.world.nodes for gpu in node.gpus]
        gpu = data.draw(st.sampled_from(gpus))
        start, end = self.now + window[0], self.now + window[1]
        units = frozenset(range(gpu.ruler + SEATS))
        hold = Booking(gpu.id, (f"change{self.count}", 0), start, end, units, whole=True)
        self.count += 1
        if not any(hold.meets(other) for other in self.world.bookings):
            self.world.bookings.append(hold)
            self.index.book(gpu.id, hold.key, hold.held())

    @rule(data=st.data())
    def report_a_node_again(self, data):
        node = data.draw(st.sampled_from(self.world.nodes))
        fresh = node.state()
        self.index.add_node(fresh)
        for booking in self.world.bookings:
            if booking.gpu in {gpu.id for gpu in node.gpus}:
                self.index.book(booking.gpu, booking.key, booking.held())
        for host in self.world.hosts:
            if host.node == node.id:
                self.index.book_host(node.id, host.holder, host.held())

    @rule(by=st.integers(1, 4))
    def wait(self, by):
        self.now += by
        self.world.bookings = [b for b in self.world.bookings if b.end > self.now]
        self.world.hosts = [h for h in self.world.hosts if h.end > self.now]
        self.index.advance(self.now)

    @invariant()
    def nothing_overlaps(self):
        assert self.world.clashes() == []

    @invariant()
    def the_picture_holds_what_the_list_holds(self):
        held = {
            (gpu.id, key): each
            for node in self.index.nodes.values()
            for gpu in node.gpus
            for key, each in gpu.held.items()
        }
        assert held == {(b.gpu, b.key): b.held() for b in self.world.bookings}
        hosts = {
            (node.id, holder): each
            for node in self.index.nodes.values()
            for holder, each in node.held.items()
        }
        assert hosts == {(h.node, h.holder): h.held() for h in self.world.hosts}

    def _of(self, holder):
        return [b for b in self.world.bookings if b.key[0] == holder]

    def _replace(self, booking, end):
        shorter = Booking(
            booking.gpu, booking.key, booking.start, end, booking.units, booking.whole
        )
        self.world.bookings[self.world.bookings.index(booking)] = shorter
        self.index.book(booking.gpu, booking.key, shorter.held())


TestDays = Days.TestCase
