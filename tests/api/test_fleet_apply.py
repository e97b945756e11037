"""A fleet file, planned, applied and exported against the real application."""

import anyio
import pytest
from fleet_world import FLEET, titles, world

from apportion.errors import ConflictError, InvalidInputError
from apportion.fleet.service import (
    Server,
    apply_plan,
    check_unchanged,
    plan_fleet,
    read_fleet,
)

pytestmark = pytest.mark.anyio

HEAD = "apiVersion: apportion/v1\n"
TWO = "tenants:\n- {id: a, name: A}\n- {id: b, name: B}\n"
POOL = "pools:\n- {name: p, site: main, gpu_model: L4"
ALONE = TWO + POOL + ", policy: {singleTenant: true}"
CREATED = [
    "create tenant root/acme",
    "create tenant root/acme-vision",
    "create site root/fra1",
    "create site acme/basement",
    "create pool root/h100",
    "create pool acme/cut",
    "create pool root/slots",
    "create offer root/h100 acme",
    "create offer acme/cut acme-vision",
    "create policy acme/at-most-8",
]


@pytest.fixture
def in_thread(app, token):
    """Run a function of a world in a thread of its own."""

    async def run(work):
        return await anyio.to_thread.run_sync(work, world(app, token))

    return run


def refusals(fleet, text, **how):
    return [str(each) for each in fleet.plan(text, **how).refusals]


async def test_a_plan_does_in_order_what_is_missing_and_then_nothing(in_thread):
    def work(fleet):
        first = fleet.plan(FLEET)
        assert first.refusals == []
        assert titles(first) == CREATED
        assert titles(fleet.plan(FLEET)) == CREATED  # a plan changes nothing
        fleet.apply(FLEET)
        assert titles(fleet.plan(FLEET)) == []
        # The site that every server begins with, in which nothing is.
        assert titles(fleet.plan(FLEET, prune=True)) == ["delete site root/main"]
        exported = fleet.export()
        assert titles(fleet.plan(exported, prune=True)) == []
        fleet.apply(exported, prune=True)
        assert fleet.export() == exported
        assert "token" not in exported.split("apiVersion")[1]

    await in_thread(work)


async def test_the_plan_knows_the_id_of_a_pool_that_is_not_there_yet(in_thread):
    def work(fleet):
        planned = {step.name: step.id for step in fleet.plan(FLEET).steps if step.kind == "pool"}
        fleet.apply(FLEET)
        for tenant, name in ((None, "h100"), ("acme", "cut")):
            with fleet.connect(tenant) as client:
                [pool] = client.list_pools(name=name, owned=True).items
            assert pool.id == planned[name]

    await in_thread(work)


async def test_only_what_differs_changes_and_is_told_field_by_field(in_thread):
    changed = (
        FLEET.replace("maxPending: 6h", "maxPending: 12h")
        .replace("gpu: 32", "gpu: 64")
        .replace("priority: 10", "priority: 20")
        .replace("vcpu: 2.5}", "memoryGiB: 8}")
        .replace("> 8", "> 4")
        .replace("name: Acme Inc.", "name: Acme")
        .replace("region: eu-west", "region: eu-north")
    )

    def work(fleet):
        fleet.apply(FLEET)
        plan = fleet.plan(changed)
        assert plan.refusals == []
        assert [
            (step.kind, step.to, change.field, change.before, change.after)
            for step in plan.steps
            for change in step.changes
            if step.kind != "policy"
        ] == [
            ("tenant", None, "name", "Acme Inc.", "Acme"),
            ("site", None, "region", "eu-west", "eu-north"),
            ("pool", None, "policy.maxPending", "6h", "12h"),
            ("quota", "vcpu", "vcpu", "2.5", 0),
            ("quota", "memoryGiB", "memoryGiB", 0, 8),
            ("offer", "acme", "priority", 10, 20),
            ("offer", "acme", "quota.gpu", 32, 64),
        ]
        assert titles(plan)[-1] == "update policy acme/at-most-8"
        fleet.apply(changed)
        assert titles(fleet.plan(changed)) == []
        with fleet.connect(None) as client:
            [pool] = client.list_pools(name="h100").items
            [offer] = client.list_offers(pool.id).items
        assert pool.version == 2
        assert pool.policy["overcommit"] == {"vcpu": 1.5}
        assert {quota.resource: quota.max for quota in offer.quotas}["gpu"] == 64
        assert {quota.resource: quota.max for quota in pool.quotas}["vcpu"] == 0

    await in_thread(work)


async def test_what_the_file_leaves_out_is_left_as_it_is(in_thread):
    little = HEAD + "pools:\n- {name: h100, site: fra1, gpu_model: H100}\n"

    def work(fleet):
        fleet.apply(FLEET)
        before = fleet.export()
        assert titles(fleet.plan(little)) == []
        # Only what the file has a section for is pruned; its pool says nothing of offers.
        assert titles(fleet.plan(little, prune=True)) == [
            "delete pool acme/cut",
            "delete pool root/slots",
        ]
        assert fleet.export() == before

    await in_thread(work)


async def test_prune_removes_what_the_file_does_not_name_and_says_all_of_it(in_thread):
    less = HEAD + (
        "tenants: []\nsites: []\npolicies: []\n"
        "pools:\n- {name: h100, site: fra1, gpu_model: H100, offers: {}}\n"
    )

    def work(fleet):
        fleet.apply(FLEET)
        plan = fleet.apply(less, prune=True)
        assert titles(plan) == [
            "delete offer root/h100 acme",
            "delete pool root/slots",
            "delete site root/main",
            "delete tenant root/acme-vision",
            "delete tenant root/acme",
        ]
        assert plan.steps[-1].also[:2] == ("pool cut is archived", "policy at-most-8 is deleted")
        assert titles(fleet.plan(less, prune=True)) == []
        with fleet.connect(None) as client:
            assert [each.id for each in client.list_tenants().items] == ["root"]
            assert [pool.name for pool in client.list_pools().items] == ["h100"]
            assert [site.name for site in client.list_sites().items] == ["fra1"]
        # What is gone is not made again in silence.
        assert [
            each.split(", which is never")[0].split(" (")[0] for each in refusals(fleet, FLEET)
        ][:3] == [
            "fleet.yaml:3: tenants[0].id: is deleted, and ids of deleted tenants stay taken",
            "fleet.yaml:4: tenants[1].id: is deleted, and ids of deleted tenants stay taken",
            "fleet.yaml:24: pools[2].name: is the name of an archived pool",
        ]

    await in_thread(work)


async def test_a_site_with_an_archived_pool_stays_and_the_plan_says_why(in_thread):
    def work(fleet):
        text = (
            HEAD + "sites:\n- {name: s, region: r}\npools:\n- {name: p, site: s, gpu_model: L4}\n"
        )
        fleet.apply(text)
        fleet.apply(HEAD + "pools: []\n", prune=True)
        plan = fleet.plan(HEAD + "sites: []\n", prune=True)
        assert titles(plan) == ["delete site root/main"]
        assert plan.left == [
            "site s of root stays: a site is kept while pools are in it, archived ones too (p)"
        ]

    await in_thread(work)


@pytest.mark.parametrize(
    ("was", "becomes", "said"),
    [
        (
            "site: basement",
            "site: nowhere",
            "pools[1].site: never changes (given: 'nowhere'); allowed: basement. Create ",
        ),
        (
            "sharing: mig",
            "sharing: exclusive",
            "pools[1].sharing: never changes (given: 'exclusive'); allowed: mig",
        ),
        ("gpu_model: L4,", "gpu_model: L4, class: vps-host,", "pools[2].class: never changes"),
        ("gpu_model: L4,", "gpu_model: L4, agent: none,", "pools[2].agent: never changes"),
        (
            "gpu_model: L4,",
            "gpu_model: L4, provider_account_id: x,",
            "pools[2].provider_account_id: never",
        ),
        (
            "parent: acme}",
            "parent: root}",
            "tenants[0].parent: never changes (given: 'root'); allowed: acme",
        ),
        (
            "region: eu-central",
            "region: eu-central, kind: dedicated",
            "sites[0].kind: never changes",
        ),
    ],
)
async def test_what_never_changes_is_refused_before_anything_is_done(in_thread, was, becomes, said):
    changed = FLEET.replace(was, becomes).replace("maxPending: 6h", "maxPending: 12h")
    assert changed.count(becomes) == 1

    def work(fleet):
        fleet.apply(FLEET)
        before = fleet.export()
        assert any(said in each for each in refusals(fleet, changed))
        with pytest.raises(InvalidInputError):
            fleet.apply(changed)
        assert fleet.export() == before

    await in_thread(work)


async def test_all_that_the_server_would_refuse_is_told_at_once_and_nothing_is_done(in_thread):
    bad = (
        FLEET.replace("maxPending: 6h", "maxPending: soon")
        .replace("replicas: 4", "replicas: 49")
        .replace("gpu_model: A100\n", "gpu_model: A100\n    policy: {shares: 100}\n")
        .replace("context.gpuCount", "context.gpuCuont")
    )

    def work(fleet):
        before = fleet.export()
        said = refusals(fleet, bad)
        assert [each.split(": ")[1] for each in said] == [
            "pools[0].policy.maxPending",
            "pools[1].policy.shares",  # of a tenant that is not there yet
            "pools[2].policy.replicas",
            "policies[0].text",
        ]
        assert all(each.startswith("fleet.yaml:") for each in said)
        with pytest.raises(InvalidInputError, match="4 things are wrong"):
            fleet.apply(bad)
        assert fleet.export() == before

    await in_thread(work)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tenants:\n- {id: a, name: A, parent: nobody}\n", "tenants[0].parent: no such tenant"),
        (
            "tenants:\n- {id: a, name: A, parent: b}\n- {id: b, name: B, parent: a}\n",
            "above itself",
        ),
        ("tenants:\n- {id: root, name: R}\n", "tenants[0].id: is there before any file"),
        ("sites:\n- {name: s, region: r, tenant: nobody}\n", "sites[0].tenant: no such tenant"),
        ("sites:\n- {name: s, region: r, kind: custom}\n", "sites[0].kind: is no kind"),
        ("pools:\n- {name: p, site: s, gpu_model: L4}\n", "pools[0].site: root has no such site"),
        (
            "pools:\n- {name: p, site: main, gpu_model: L4, offers: {x: {quota: {}}}}\n",
            "pools[0].offers.x: no tenant below root",
        ),
        (
            "pools:\n- {name: p, site: main, gpu_model: L4, offers: {root: {quota: {}}}}\n",
            "pools[0].offers.root: owns the pool",
        ),
        (
            TWO + POOL + ", sharing: mps, policy: {replicas: 2}, offers: {a: {quota: {}}}}\n",
            "pools[0].offers: a mps pool",
        ),
        (
            ALONE + ", offers: {a: {quota: {}}, b: {quota: {}}}}\n",
            "offered to one tenant besides its owner",
        ),
        (
            ALONE + ", offers: {a: {quota: {}, include_descendants: true}}}\n",
            "never offered with descendants",
        ),
        (
            "pools:\n- {name: p, site: main, gpu_model: L4, class: provider}\n",
            "pools[0].provider_account_id: a provider pool needs it",
        ),
        (
            POOL + ", policy: {x: 0.12345678901234567890123}}\n",
            "pools[0].policy.x: has more digits",
        ),
    ],
)
async def test_what_cannot_be_is_refused_with_its_path(in_thread, text, said):
    def work(fleet):
        before = fleet.export()
        found = refusals(fleet, HEAD + text)
        assert any(said in each for each in found), found
        with pytest.raises(InvalidInputError):
            fleet.apply(HEAD + text)
        assert fleet.export() == before

    await in_thread(work)


async def test_the_one_tenant_of_a_pool_can_be_exchanged(in_thread):
    text = HEAD + (
        "tenants:\n- {id: a, name: A}\n- {id: b, name: B}\npools:\n- {name: p, site: main, "
        "gpu_model: L4, policy: {singleTenant: true}, offers: {a: {quota: {gpu: 1}}}}\n"
    )

    def work(fleet):
        fleet.apply(text)
        other = text.replace("offers: {a:", "offers: {b:")
        assert "one tenant" in refusals(fleet, other)[0]
        assert titles(fleet.apply(other, prune=True)) == [
            "delete offer root/p a",
            "create offer root/p b",
        ]
        assert titles(fleet.plan(other)) == []

    await in_thread(work)


async def test_a_pool_becomes_single_tenant_once_its_other_offers_are_gone(in_thread):
    text = HEAD + (
        "tenants:\n- {id: a, name: A}\n- {id: b, name: B}\npools:\n- {name: p, site: main, "
        "gpu_model: L4, policy: {}, offers: {a: {quota: {gpu: 1}}, b: {quota: {gpu: 1}}}}\n"
    )
    alone = text.replace("policy: {}", "policy: {singleTenant: true}").replace(
        ", b: {quota: {gpu: 1}}", ""
    )

    def work(fleet):
        fleet.apply(text)
        assert titles(fleet.apply(alone, prune=True)) == [
            "delete offer root/p b",
            "update pool root/p",
        ]

    await in_thread(work)


async def test_limits_that_an_earlier_offer_left_are_those_of_the_file(in_thread):
    text = HEAD + (
        "tenants:\n- {id: a, name: A}\npools:\n"
        "- {name: p, site: main, gpu_model: L4, offers: {a: {quota: {gpu: 4}}}}\n"
    )

    def work(fleet):
        with fleet.connect(None) as client:
            fleet.apply(text)
            [pool] = client.list_pools(name="p").items
            client.set_quota({"tenant_id": "a", "pool_id": pool.id, "resource": "vcpu", "max": 8})
            assert titles(fleet.plan(text)) == ["update offer root/p a"]
            fleet.apply(text)
            quota = client.get_quota(pool.id, "a", "vcpu")
            assert quota.max == 0
            assert titles(fleet.plan(text)) == []

    await in_thread(work)


async def test_a_change_by_somebody_else_after_the_plan_is_refused_and_kept(in_thread):
    changed = FLEET.replace("maxPending: 6h", "maxPending: 12h").replace("> 8", "> 4")

    def work(fleet):
        fleet.apply(FLEET)
        with Server(fleet.connect) as server, fleet.connect("acme") as acme:
            [pool] = server.own.list_pools(name="h100").items
            [policy] = acme.list_policies().items
            plan, there = plan_fleet(read_fleet(changed, "f"), server, prune=False)
            server.own.update_pool(pool.id, {"version": 1, "policy": {"maxPending": "1h"}})
            with pytest.raises(ConflictError) as caught:
                apply_plan(plan, there, server, told=lambda *_: None)
            assert caught.value.details["step"] == 1
            assert server.own.get_pool(pool.id).policy == {"maxPending": "1h"}
            assert acme.get_policy(policy.id).version == 1

    await in_thread(work)


async def test_a_tenant_applies_a_file_for_itself_and_those_below(in_thread):
    text = HEAD + (
        "tenants:\n- {id: acme-vision, name: Vision}\nsites:\n- {name: attic, region: r}\n"
        "pools:\n- {name: own, site: attic, gpu_model: L4, offers: {acme-vision: {quota: {}}}}\n"
    )

    def work(fleet):
        fleet.apply(HEAD + "tenants:\n- {id: acme, name: A}\n- {id: other, name: O}\n")
        own = fleet.connect

        def as_acme(tenant):
            return own(tenant or "acme")

        fleet.connect = as_acme
        fleet.apply(text)
        exported = fleet.export()
        assert "other" not in exported
        assert "kind: custom" in exported
        assert titles(fleet.plan(exported, prune=True)) == []
        assert (
            "tenants[0].id: is the tenant that acts"
            in refusals(fleet, HEAD + "tenants:\n- {id: acme, name: A}\n")[0]
        )
        assert (
            "no such tenant below"
            in refusals(fleet, HEAD + "sites:\n- {name: s, region: r, tenant: other}\n")[0]
        )

    await in_thread(work)


async def test_another_plan_than_the_one_that_was_shown_is_not_done(in_thread):
    def work(fleet):
        shown = fleet.plan(FLEET)
        check_unchanged(shown, fleet.plan(FLEET))
        with fleet.connect(None) as client:
            client.create_tenant({"id": "acme", "name": "Somebody"})
        with pytest.raises(ConflictError, match="changed since the plan was shown"):
            check_unchanged(shown, fleet.plan(FLEET))

    await in_thread(work)
