"""Tenants, offers, limits, archives and reservations in any order, judged by a model of its own.

The model keeps offers, limits and what each reservation costs as fractions, and counts GPUs and
instances; it reads which pool was chosen, and nothing else of what the services think.
"""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from fractions import Fraction
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from pools_acting import archive, limit, limits, offer, unoffer
from services_world import open_world

from apportion.errors import NotFoundError, QuotaExceededError
from apportion.quantities.equivalents import PER_GPU
from apportion.reservations.explain import explain_quota
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

INSTANCES = {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}
SHARES = {"1g.10gb": Fraction(1, 7), "2g.20gb": Fraction(2, 7), "3g.40gb": Fraction(3, 7)}
GPUS = {"large": 3, "small": 1}
PARENTS = {"root": None, "acme": "root", "lab": "acme"}
UNLIMITED = None
NEVER = "0s"
"""Whoever waits long gets a start in the future, and is charged for it: the model knows none."""
EVERYTHING = ("gpu", "gpu.mig", "gpu.slot", "gpu.share", "vcpu", "memoryGiB", "gpuEquivalents")


@st.composite
def wants(draw):
    """Draw who asks for what, and in which pools it may lie."""
    kind = draw(st.sampled_from(["whole", "whole", "mig"]))
    pools = [["large"], ["small"], ["small", "large"]] if kind == "whole" else [["cut"]]
    return {
        "tenant": draw(st.sampled_from(sorted(PARENTS))),
        "pools": draw(st.sampled_from(pools)),
        "profile": None if kind == "whole" else draw(st.sampled_from(sorted(INSTANCES))),
        "count": draw(st.sampled_from([1, 1, 2])),
        "hours": draw(st.integers(1, 3)),
    }


def cost(wanted):
    """Return what an ask takes of each quota."""
    if wanted["profile"] is None:
        return {"gpu": Fraction(wanted["count"]), "gpuEquivalents": Fraction(wanted["count"])}
    part = SHARES[wanted["profile"]] * wanted["count"]
    return {"gpu.mig": Fraction(wanted["count"]), "gpuEquivalents": part}


class Model:
    """What should be: who may use which pool, with what limits, and who has what."""

    def __init__(self):
        self.archived = set()
        self.offers = {}
        self.limits = {
            ("root", pool, resource): UNLIMITED
            for pool in ("large", "small", "cut")
            for resource in EVERYTHING
        }
        self.asked = {}
        self.live = {}

    def payer(self, tenant, pool):
        """Return whose quota a tenant uses in a pool; None where the pool is not there for it."""
        if pool in self.archived:
            return None
        if tenant == "root":
            return "root"
        above = tenant
        while above != "root":
            with_all_below = self.offers.get((pool, above))
            if with_all_below is not None and (above == tenant or with_all_below):
                return above
            above = PARENTS[above]
        return None

    def used(self, tenant, pool, resource):
        return sum(
            (
                cost(self.asked[each]).get(resource, 0)
                for each, (payer, in_pool) in self.live.items()
                if (payer, in_pool) == (tenant, pool)
            ),
            Fraction(0),
        )

    def covers(self, payer, pool, amounts):
        for resource, amount in amounts.items():
            most = self.limits.get((payer, pool, resource), 0)
            if most is not UNLIMITED and self.used(payer, pool, resource) + amount > most:
                return False
        return True

    def has_room(self, wanted, pool):
        here = [self.asked[each] for each, (_, in_pool) in self.live.items() if in_pool == pool]
        if wanted["profile"] is None:
            return sum(each["count"] for each in here) + wanted["count"] <= GPUS[pool]
        same = sum(each["count"] for each in here if each["profile"] == wanted["profile"])
        return same + wanted["count"] <= INSTANCES[wanted["profile"]]

    def outcome(self, wanted):
        """Return what becomes of an ask: the pools it may lie in, or what it is told."""
        payers = {pool: self.payer(wanted["tenant"], pool) for pool in wanted["pools"]}
        if None in payers.values():
            return NotFoundError
        good = self.possible(wanted)
        if good:
            return good
        # An instance costs an eighth at least; only where it lies tells how much exactly.
        least = cost(wanted)
        if wanted["profile"] is not None:
            least["gpuEquivalents"] = Fraction(wanted["count"], 8)
        if any(
            self.covers(payer, pool, least) and not self.has_room(wanted, pool)
            for pool, payer in payers.items()
        ):
            return "pending"
        return QuotaExceededError

    def possible(self, wanted):
        return {
            pool
            for pool in wanted["pools"]
            if (payer := self.payer(wanted["tenant"], pool)) is not None
            and self.covers(payer, pool, cost(wanted))
            and self.has_room(wanted, pool)
        }

    def lower(self, tenant, pool):
        for key in self.limits:
            if key[:2] == (tenant, pool):
                used = self.used(*key)
                most = self.limits[key]
                self.limits[key] = used if most is UNLIMITED else min(most, used)


class Sharing(RuleBasedStateMachine):
    """One server and three tenants, one below the other; pools are root's."""

    template = None

    def __init__(self):
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.model = Model()
        self.world = self.run(self.open())

    def run(self, work):
        return self.runner.run(work)

    async def open(self):
        world = await open_world(self.stack, self.template)
        # Ids in the order in which they are made: the same steps again do the same again.
        numbers = count()
        world.runtime = replace(world.runtime, entropy=lambda n: next(numbers).to_bytes(n))
        world.restart()
        self.pools = {}
        for name, many in GPUS.items():
            gpus = [gpu("H100", index, node=name) for index in range(many)]
            wanted = pool_of("H100", name=name, reserveAfter=NEVER)
            self.pools[name] = await world.pool(wanted, inventory(name, *gpus))
        cuts = ("1g.10gb@0", "1g.10gb@1", "2g.20gb@2", "3g.40gb@4")
        cut = gpu("H100", 0, *cuts, node="cut")
        self.pools["cut"] = await world.pool(
            pool_of("H100", "mig", name="cut", reserveAfter=NEVER), inventory("cut", cut)
        )
        self.tenants = {"root": world.caller}
        for name, above in PARENTS.items():
            if above is not None:
                self.tenants[name] = await world.tenant(name, above=above)
        return world

    def teardown(self):
        self.run(self.stack.aclose())
        self.runner.close()

    # -- what happens ------------------------------------------------------------------------------

    @rule(
        pool=st.sampled_from(["large", "small", "cut"]),
        tenant=st.sampled_from(["acme", "acme", "lab"]),
        most=st.sampled_from([0, 1, 2, 4]),
        sevenths=st.sampled_from([None, None, 0, 1, 3, 5, 14]),
        below=st.booleans(),
    )
    def offer(self, pool, tenant, most, sevenths, below):
        if pool in self.model.archived:
            return
        counted = "gpu.mig" if pool == "cut" else "gpu"
        quota = {counted: most}
        given = {(tenant, pool, counted): Fraction(most)}
        if sevenths is not None:
            quota["gpuEquivalents"] = f"{sevenths}/7"
            given[tenant, pool, "gpuEquivalents"] = Fraction(sevenths, 7)
        elif (pool, tenant) not in self.model.offers:
            given[tenant, pool, "gpuEquivalents"] = UNLIMITED
        self.run(
            offer(
                self.world,
                self.pools[pool],
                self.tenants[tenant],
                quota,
                include_descendants=below,
            )
        )
        self.model.offers[pool, tenant] = below
        self.model.limits |= given

    @precondition(lambda self: self.model.offers)
    @rule(data=st.data())
    def unoffer(self, data):
        pool, tenant = data.draw(st.sampled_from(sorted(self.model.offers)))
        assert self.run(unoffer(self.world, self.pools[pool], self.tenants[tenant]))
        del self.model.offers[pool, tenant]
        self.model.lower(tenant, pool)

    @precondition(lambda self: len(self.model.asked) > 5)
    @rule(pool=st.sampled_from(["small", "cut"]))
    def archive(self, pool):
        self.run(archive(self.world, self.pools[pool]))
        self.model.archived.add(pool)
        for each, tenant in [key for key in self.model.offers if key[0] == pool]:
            del self.model.offers[each, tenant]
            self.model.lower(tenant, pool)

    @rule(data=st.data(), sevenths=st.sampled_from([0, 1, 4, 7, 21]))
    def limit(self, data, sevenths):
        holders = {(pool, "root") for pool in self.pools} | set(self.model.offers)
        pool, tenant = data.draw(
            st.sampled_from(sorted(each for each in holders if each[0] not in self.model.archived))
        )
        counted = "gpu.mig" if pool == "cut" else "gpu"
        resource = data.draw(st.sampled_from([counted, "gpuEquivalents"]))
        most = sevenths if resource == counted else f"{sevenths}/7"
        self.run(limit(self.world, self.pools[pool], self.tenants[tenant], resource, most))
        self.model.limits[tenant, pool, resource] = Fraction(most)

    @rule(several=st.lists(wants(), min_size=1, max_size=4))
    def create(self, several):
        for wanted in several:
            expected = self.model.outcome(wanted)
            request = ask(
                [self.pools[name].id for name in wanted["pools"]],
                device(
                    "gpu" if wanted["profile"] is None else "gpu.mig",
                    wanted["count"],
                    profile=wanted["profile"],
                ),
                duration=f"{wanted['hours']}h",
            )
            service, caller = self.world.reservations, self.tenants[wanted["tenant"]]
            if isinstance(expected, type):
                with pytest.raises(expected):
                    self.run(service.create(caller, request))
                continue
            view = self.run(service.create(caller, request))
            self.model.asked[view.id] = wanted
            if expected == "pending":
                assert view.state == "pending", wanted
            else:
                assert self.note(view) in expected, (wanted, view.reason)

    def note(self, view):
        """Take into the model where one was placed, if it is right as to who pays and what."""
        [pool] = [name for name, pool in self.pools.items() if pool.id == view.pool_id]
        wanted = self.model.asked[view.id]
        payer = self.model.payer(wanted["tenant"], pool)
        assert view.charged_tenant_id == payer
        charged = {of: Fraction(amount) for of, amount in view.charges.items()}
        assert charged == cost(wanted)
        self.model.live[view.id] = (payer, pool)
        return pool

    @precondition(lambda self: self.model.asked)
    @rule(data=st.data())
    def release(self, data):
        one = data.draw(st.sampled_from([*self.model.asked]))
        caller = self.tenants[self.model.asked[one]["tenant"]]
        view = self.run(self.world.reservations.release(caller, one))
        assert view.state in ("ended", "failed")
        self.model.live.pop(one, None)

    @rule(minutes=st.sampled_from([0, 1, 29]))
    def tick(self, minutes):
        self.run(self.world.tick(minutes=minutes))
        self.run(self.follow())

    @rule()
    def restart(self):
        self.world.restart()

    # -- what holds --------------------------------------------------------------------------------

    async def follow(self):
        """See what the clock did: who ended, who was placed, who failed, and who rightly waits."""
        views = {}
        for caller in self.tenants.values():
            found = await self.world.reservations.list(caller, limit=1000)
            views |= {view.id: view for view in found}
        for each in [each for each in self.model.live if views[each].state == "ended"]:
            assert views[each].end <= self.world.clock()
            del self.model.live[each]
        for each, wanted in self.model.asked.items():
            view = views[each]
            if view.state == "active" and each not in self.model.live:
                self.note(view)
            there = [pool for pool in wanted["pools"] if self.model.payer(wanted["tenant"], pool)]
            if view.state == "failed":
                assert view.reason["code"] == "PoolGone"
            if view.state == "pending":
                assert there, "what has nothing to wait for has failed"
        waiting = [each for each in self.model.asked if views[each].state == "pending"]
        for each in waiting:
            assert not self.model.possible(self.model.asked[each]), views[each].reason

    @invariant()
    def limits_and_use_are_those_of_the_model(self):
        for tenant, caller in self.tenants.items():
            for pool, made in self.pools.items():
                self.compare(tenant, pool, self.run(limits(self.world, caller, made)))

    def compare(self, tenant, pool, found):
        keys = {key[2] for key in self.model.limits if key[:2] == (tenant, pool)}
        assert set(found) == keys
        for resource, (most, used) in found.items():
            unit = PER_GPU if resource == "gpuEquivalents" else 1
            expected = self.model.limits[tenant, pool, resource]
            assert Fraction(used) == self.model.used(tenant, pool, resource) * unit
            assert most == (None if expected is UNLIMITED else str(expected * unit))

    @invariant()
    def every_quota_is_explained(self):
        for tenant, pool, resource in self.model.limits:
            if resource not in ("gpu", "gpuEquivalents"):
                continue
            key = (tenant, self.pools[pool].id, resource)
            found = self.run(explain_quota(self.world.runtime, self.world.caller, key))
            assert Fraction(found.accounted) == self.model.used(tenant, pool, resource)

    @invariant()
    def the_auditor_finds_nothing(self):
        assert self.run(self.world.findings()) == []

    @invariant()
    def the_pictures_are_those_of_the_database(self):
        assert self.run(self.world.drift()) == {}


def test_whatever_happens_each_is_charged_what_it_has_to_whom_it_is_offered(template):
    Sharing.template = template
    run_state_machine_as_test(
        Sharing,
        settings=settings(
            max_examples=settings().max_examples // 4, stateful_step_count=30, deadline=None
        ),
    )
