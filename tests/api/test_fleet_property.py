"""Any fleet that a file can hold is applied, comes out as it went in, and goes into any server."""

import anyio
import pytest
from fleet_world import World, titles
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api_server import served
from apportion.client import Client
from apportion.errors import InvalidInputError
from apportion.fleet.exporting import to_yaml
from apportion.testing.postgres import Template

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(1800)]

# Each makes two servers; the thorough profile makes many more.
EXAMPLES = 6 if settings.default.max_examples <= 50 else 60
NAMES = ["a", "b-1", "c.d", "0", "no"]
IDS = ["t1", "on", "t-3"]
TEXTS = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=20)
WHOLE = st.integers(0, 10**6) | st.just("unlimited")
PARTS = st.sampled_from(["0.5", "2.25", "7"]) | WHOLE
LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "gpu": WHOLE,
        "vcpu": PARTS,
        "gpuEquivalents": st.sampled_from(["7/2", "1/3", "2.5", 0, 4, "unlimited"]),
    },
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False, allow_infinity=False, width=32)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
POLICIES = st.fixed_dictionaries(
    {}, optional={"maxPending": st.sampled_from(["6h", "90m"]), "zz-note": VALUES}
)
OFFERS = st.fixed_dictionaries(
    {"quota": LIMITS, "priority": st.integers(-1000, 1000), "include_descendants": st.booleans()}
)


@st.composite
def fleets(draw):
    parents = {}
    for each in draw(st.lists(st.sampled_from(IDS), unique=True)):
        parents[each] = draw(st.sampled_from(["root", *parents]))
    owners = ["root", *parents]

    def is_above(one, other):
        while other in parents:
            other = parents[other]
            if other == one:
                return True
        return False

    sites = draw(st.lists(st.tuples(st.sampled_from(owners), st.sampled_from(NAMES)), unique=True))
    pools = []
    for tenant, name in draw(
        st.lists(st.tuples(st.sampled_from(owners), st.sampled_from(NAMES)), unique=True)
    ):
        own = [site for owner, site in sites if owner == tenant]
        if not own:
            continue
        below = [each for each in parents if is_above(tenant, each)]
        offers = draw(st.dictionaries(st.sampled_from(below), OFFERS)) if below else {}
        pools.append(
            {
                "name": name,
                "tenant": tenant,
                "site": draw(st.sampled_from(own)),
                "gpu_model": draw(st.sampled_from(["H100", "L4"])),
                "policy": draw(POLICIES),
                "owner_quota": draw(LIMITS),
                "offers": offers,
            }
        )
    policies = [
        {
            "name": name,
            "tenant": tenant,
            "description": draw(TEXTS),
            "text": f"// {draw(TEXTS)}\npermit (principal, action, resource);\n",
        }
        for tenant, name in draw(
            st.lists(st.tuples(st.sampled_from(owners), st.sampled_from(NAMES)), unique=True)
        )
    ]
    return {
        "apiVersion": "apportion/v1",
        "tenants": [{"id": each, "name": draw(TEXTS), "parent": parents[each]} for each in parents],
        "sites": [{"name": name, "tenant": tenant, "region": "r"} for tenant, name in sites],
        "pools": pools,
        "policies": policies,
    }


def on_two_servers(template: Template, work):
    """Run a function with two fresh servers."""

    async def dsns():
        async with template.clone() as one, template.clone() as other:
            await anyio.to_thread.run_sync(run, one, other)

    def run(one, other):
        with served(one) as first, served(other) as second:
            work(
                *(
                    World(lambda tenant, at=at: Client(at.url, at.token, tenant=tenant))
                    for at in (first, second)
                )
            )

    anyio.run(dsns)


def _change(world, text):
    """Turn what is there into something else, which is refused at first or done to the end."""
    before = world.export()
    if world.plan(text, prune=True).refusals:
        with pytest.raises(InvalidInputError):
            world.apply(text, prune=True)
        assert world.export() == before
    else:
        world.apply(text, prune=True)
        assert titles(world.plan(text, prune=True)) == []


async def test_any_fleet_comes_out_as_it_went_in_and_goes_into_another_server(template):
    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
    @given(fleets(), fleets())
    def holds(fleet, next_fleet):
        def work(one, two):
            text = to_yaml(fleet)
            one.apply(text, prune=True)
            assert titles(one.plan(text, prune=True)) == []
            exported = one.export()
            assert titles(one.plan(exported, prune=True)) == []
            two.apply(exported, prune=True)
            assert two.export() == exported
            _change(one, to_yaml(next_fleet))

        on_two_servers(template, work)

    await anyio.to_thread.run_sync(holds)
