"""Every field of a pool's policy: what is accepted, and how each bad value is refused."""

import copy
import json
from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apportion.errors import ApportionError, InvalidInputError
from apportion.pools.policy import (
    PoolPolicy,
    near_miss,
    policy_problems,
    policy_schema,
    read_policy,
    read_stored,
    unknown_fields,
)
from apportion.pools.policy_reading import names_of

DURATION = "a duration such as 30s, 90m, 4h, 1d12h, 2w, P1D or PT4H"
CPUS = "numbers and ascending ranges of CPUs such as 2-15,18"
UNAVAILABLE = 'a whole number of nodes from 1, or a share of the pool from "1%" to "100%"'
COUNTS = "0 to 2147483647"
FLAG = "true, false"
NAME = "lower-case letters and digits, with dots, dashes and underscores between them"
RATIO = "a number; what lies outside 0.1 to 100 is clamped"
VCPU = "a number of virtual CPUs such as 4 or 0.5"
H100_PROFILES = (
    "a layout of profiles that H100 boards have: 1g.10gb, 1g.10gb+me, 1g.20gb, 2g.20gb, 3g.40gb, "
    "4g.40gb, 7g.80gb"
)

GOOD = [
    ("exclusive", {"acceptance": [{"kind": "diag.nvml"}], "maxPending": "6h"}),
    ("exclusive", {"acceptance": [{"kind": "diag.nvml", "minutes": 5}]}),
    ("exclusive", {"acceptance": []}),
    ("exclusive", {"joinAttestors": ["join-token"]}),
    ("timeslice", {"replicas": 1}),
    ("mps", {"replicas": 48}),
    ("timeslice", {"shares": 100}),
    ("exclusive", {"window": {"minimum": "1h", "maximum": "2d", "step": "30m"}}),
    ("exclusive", {"window": {"lead": "0", "gap": "5m"}}),
    *(("exclusive", {"placement": each}) for each in ("first", "best", "spread", "fragmentation")),
    ("exclusive", {"rollout": {"maxUnavailable": 3}}),
    ("exclusive", {"rollout": {"maxUnavailable": "25%"}}),
    *(("timeslice", {"timeSlice": each}) for each in ("default", "short", "medium", "long")),
    *(("mig", {"modeChange": each}) for each in ("never", "idle", "reset", "reboot")),
    ("exclusive", {"endGrace": "90s"}),
    ("mig", {"migLayout": "dynamic"}),
    ("mig", {"migLayout": "all-1g.10gb"}),
    ("mig", {"migLayout": "mixed:3g.40gb+2x2g.20gb"}),
    ("mig", {"migLayout": "all-1g.12gb"}),  # of the H100 NVL, another board of the model
    ("mig", {"singleTenant": True}),
    ("exclusive", {"overcommit": {"vcpu": 1.5, "memoryGiB": "1.1"}}),
    ("exclusive", {"hostReserve": {"vcpu": "500m", "memoryGiB": 8}}),
    ("exclusive", {"openEnded": True, "resetOnRelease": True, "preemptible": False}),
    ("exclusive", {"admission": {}}),
    ("exclusive", {"hugepages": {"2Mi": 512, "1Gi": 4}}),
    ("exclusive", {"kernelModules": ["nvidia_peermem", "gdrdrv"]}),
    ("exclusive", {"cpu": {"isolated": "2-15,18", "governor": "performance", "smt": False}}),
    *(("exclusive", {"iommu": each}) for each in ("on", "off", "passthrough", True, False)),
    ("exclusive", {"gpu": {"persistenceMode": True, "ecc": True, "computeMode": "default"}}),
    ("exclusive", {"gpu": {"powerLimitWatts": 500}}),
    (
        "exclusive",
        {
            "kubernetes": {
                "labels": {"example.com/tier": "gold", "zone": ""},
                "taints": [{"key": "gpu", "effect": "NoSchedule"}],
            }
        },
    ),
]


@pytest.mark.parametrize(("sharing", "policy"), GOOD)
def test_a_good_policy_has_no_problem_and_reads(sharing, policy):
    if sharing in ("timeslice", "mps"):
        policy = {"replicas": 4, **policy} if "shares" not in policy else policy
    assert policy_problems(policy, sharing, "H100") == []
    assert isinstance(read_policy(policy, sharing), PoolPolicy)


BAD = [
    ("mig", {"acceptance": {}}, "acceptance", {}, "a list"),
    ("mig", {"acceptance": ["x"]}, "acceptance[0]", "x", "an object with kind"),
    ("mig", {"acceptance": [{}]}, "acceptance[0].kind", None, None),
    ("mig", {"acceptance": [{"kind": "Bad!"}]}, "acceptance[0].kind", "Bad!", NAME),
    ("mig", {"acceptance": [{"kind": "burn"}]}, "acceptance[0].kind", "burn", "diag.nvml"),
    ("mig", {"joinAttestors": "join-token"}, "joinAttestors", "join-token", "a list"),
    ("mig", {"joinAttestors": []}, "joinAttestors", [], "at least 1"),
    ("mig", {"joinAttestors": ["tpm"]}, "joinAttestors[0]", "tpm", "join-token"),
    (
        "mig",
        {"joinAttestors": ["join-token", "join-token"]},
        "joinAttestors[1]",
        "join-token",
        "join-token",
    ),
    ("mig", {"reportInterval": "0s"}, "reportInterval", "0s", None),
    ("mig", {"maxPending": 6}, "maxPending", 6, f"{DURATION}, or 0s"),
    ("mig", {"maxPending": "6 h"}, "maxPending", "6 h", f"{DURATION}, or 0s"),
    ("mig", {"reserveAfter": "soon"}, "reserveAfter", "soon", f"{DURATION}, or 0s"),
    ("timeslice", {"replicas": 0}, "replicas", 0, "1 to 48"),
    ("timeslice", {"replicas": 49}, "replicas", 49, "1 to 48"),
    ("timeslice", {"replicas": True}, "replicas", True, "1 to 48"),
    ("timeslice", {"replicas": 4.0}, "replicas", 4.0, "1 to 48"),
    ("mps", {}, "replicas", None, "replicas 1 to 48, or shares 100"),
    ("mps", {"replicas": 4, "shares": 100}, "replicas", 4, "replicas 1 to 48, or shares 100"),
    ("mps", {"shares": 99}, "shares", 99, "100 to 100"),
    ("mig", {"replicas": 4}, "replicas", 4, "no replicas here"),
    ("exclusive", {"shares": 100}, "shares", 100, "no shares here"),
    (
        "mig",
        {"window": []},
        "window",
        [],
        "an object with minimum, maximum, step, lead, gap, notice",
    ),
    (
        "mig",
        {"window": {"minimum": "0s"}},
        "window.minimum",
        "0s",
        "longer than 0, up to ten years (3653d)",
    ),
    (
        "mig",
        {"window": {"minimum": "2h", "maximum": "1h"}},
        "window.minimum",
        "2h",
        "at most 1h, which is policy.window.maximum",
    ),
    (
        "mig",
        {"window": {"maximum": "100m", "step": "1h"}},
        "window.maximum",
        "1h40m",
        "1h or 2h",
    ),
    ("mig", {"window": {"minimum": "10m", "step": "1h"}}, "window.minimum", "10m", "1h"),
    (
        "mig",
        {"window": {"minutes": "1h"}},
        "window.minutes",
        "1h",
        "minimum, maximum, step, lead, gap, notice",
    ),
    (
        "mig",
        {"placement": "random"},
        "placement",
        "random",
        "first, best, spread, fragmentation, exact",
    ),
    ("mig", {"rollout": {"maxUnavailable": 0}}, "rollout.maxUnavailable", 0, UNAVAILABLE),
    ("mig", {"rollout": {"maxUnavailable": "0%"}}, "rollout.maxUnavailable", "0%", UNAVAILABLE),
    ("mig", {"rollout": {"maxUnavailable": "101%"}}, "rollout.maxUnavailable", "101%", UNAVAILABLE),
    (
        "timeslice",
        {"replicas": 2, "timeSlice": "tiny"},
        "timeSlice",
        "tiny",
        "default, short, medium, long",
    ),
    ("mps", {"replicas": 2, "timeSlice": "short"}, "timeSlice", "short", "no timeSlice here"),
    ("mig", {"modeChange": "always"}, "modeChange", "always", "never, idle, reset, reboot"),
    ("mig", {"endGrace": "soon"}, "endGrace", "soon", f"{DURATION}, or 0s"),
    ("mig", {"migLayout": 7}, "migLayout", 7, "a layout's name, or dynamic"),
    ("mig", {"migLayout": "mixed:5x3g.40gb"}, "migLayout", "mixed:5x3g.40gb", None),
    ("exclusive", {"migLayout": "dynamic"}, "migLayout", "dynamic", "no migLayout here"),
    ("mig", {"singleTenant": "yes"}, "singleTenant", "yes", FLAG),
    ("mig", {"singleTenant": 1}, "singleTenant", 1, FLAG),
    ("mig", {"overcommit": {"vcpu": "lots"}}, "overcommit.vcpu", "lots", RATIO),
    (
        "mig",
        {"overcommit": {"vcpu": "1/3"}},
        "overcommit.vcpu",
        "1/3",
        "a decimal number such as 1.5",
    ),
    ("mig", {"overcommit": {"gpu": 2}}, "overcommit.gpu", 2, "vcpu, memoryGiB"),
    ("mig", {"hostReserve": {"vcpu": -1}}, "hostReserve.vcpu", -1, VCPU),
    ("mig", {"hostReserve": 4}, "hostReserve", 4, "an object with vcpu, memoryGiB"),
    (
        "mig",
        {"admission": {"budgetCheck": "meter"}},
        "admission.budgetCheck",
        "meter",
        "no budgetCheck; quotas and access policies bound what is admitted",
    ),
    ("mig", {"admission": {"budgetCheck": "bank"}}, "admission.budgetCheck", "bank", "meter"),
    ("mig", {"openEnded": None, "preemptible": "no"}, "preemptible", "no", FLAG),
    ("mig", {"resetOnRelease": 0}, "resetOnRelease", 0, FLAG),
    ("mig", {"hugepages": {"4Mi": 1}}, "hugepages.4Mi", 1, "2Mi, 1Gi"),
    ("mig", {"hugepages": {"2Mi": -1}}, "hugepages.2Mi", -1, COUNTS),
    ("mig", {"hugepages": {"1Gi": 2**31}}, "hugepages.1Gi", 2**31, COUNTS),
    (
        "mig",
        {"kernelModules": ["a b"]},
        "kernelModules[0]",
        "a b",
        "a kernel module's name such as nvidia_peermem",
    ),
    ("mig", {"cpu": {"isolated": "15-2"}}, "cpu.isolated", "15-2", CPUS),
    ("mig", {"cpu": {"isolated": "all"}}, "cpu.isolated", "all", CPUS),
    (
        "mig",
        {"cpu": {"governor": "fast"}},
        "cpu.governor",
        "fast",
        "performance, powersave, ondemand, conservative, schedutil",
    ),
    ("mig", {"cpu": {"smt": "off"}}, "cpu.smt", "off", FLAG),
    ("mig", {"iommu": "maybe"}, "iommu", "maybe", "on, off, passthrough"),
    ("mig", {"gpu": {"persistenceMode": "on"}}, "gpu.persistenceMode", "on", FLAG),
    ("mig", {"gpu": {"ecc": 1}}, "gpu.ecc", 1, FLAG),
    ("mig", {"gpu": {"powerLimitWatts": 0}}, "gpu.powerLimitWatts", 0, "1 to 10000"),
    (
        "mig",
        {"gpu": {"computeMode": "shared"}},
        "gpu.computeMode",
        "shared",
        "default, exclusiveProcess, prohibited",
    ),
    (
        "mig",
        {"kubernetes": {"labels": {"a b": "c"}}},
        'kubernetes.labels["a b"]',
        "a b",
        "a Kubernetes label's key such as example.com/tier",
    ),
    (
        "mig",
        {"kubernetes": {"taints": [{"key": "gpu", "effect": "Never"}]}},
        "kubernetes.taints[0].effect",
        "Never",
        "NoSchedule, PreferNoSchedule, NoExecute",
    ),
    ("mig", {"kubernetes": {"taints": {}}}, "kubernetes.taints", {}, "a list"),
]


@pytest.mark.parametrize(("sharing", "policy", "path", "value", "allowed"), BAD)
def test_a_bad_value_is_refused_with_its_path_what_was_given_and_what_is_allowed(
    sharing, policy, path, value, allowed
):
    split = {"replicas": 4} if sharing == "timeslice" and "replicas" not in policy else {}
    [problem] = policy_problems({**split, **policy}, sharing, "H100")
    assert isinstance(problem, InvalidInputError)
    assert (problem.field, problem.given) == (f"policy.{path}", value)
    if allowed is not None:
        assert problem.allowed == allowed


def test_every_field_is_tried_with_a_bad_value():
    tried = {name for _, policy, *_ in BAD for name in policy}
    assert tried >= set(names_of(PoolPolicy))


def test_all_that_is_wrong_is_told_at_once():
    policy = {
        "replicas": 49,
        "maxPending": "6 hours",
        "window": {"minimum": "2h", "maximum": "1h", "late": 1},
        "hugepages": {"2Mi": "many"},
        "joinAttestors": ["tpm"],
        "migLayout": "all-1g.10gb",
        "admission": {"budgetCheck": "meter"},
    }
    assert sorted(str(each.field) for each in policy_problems(policy, "timeslice", "H100")) == [
        "policy.admission.budgetCheck",
        "policy.hugepages.2Mi",
        "policy.joinAttestors[0]",
        "policy.maxPending",
        "policy.migLayout",
        "policy.replicas",
        "policy.window.late",
    ]


def test_a_layout_that_no_board_of_the_model_has_lists_the_profiles_that_there_are():
    [problem] = policy_problems({"migLayout": "all-1g.5gb"}, "mig", "H100")
    assert problem.message.startswith("NVIDIA H100 80GB HBM3 (SXM5) has no profile 1g.5gb")
    assert str(problem.allowed).startswith(H100_PROFILES)
    assert str(problem.allowed).endswith("; or dynamic")
    assert problem.details["absent"] == ["1g.5gb"]
    assert problem.hint == "The nearest layout that can exist is all-1g.10gb"


@pytest.mark.parametrize("layout", ["dynamic", "all-1g.10gb"])
def test_a_layout_for_a_model_that_mig_cannot_split_lists_the_models_that_it_can(layout):
    [problem] = policy_problems({"migLayout": layout}, "mig", "T4")
    assert problem.message == "no GPU of the model T4 is known to be one that MIG can split"
    assert {"A100", "H100", "A30"} <= set(str(problem.allowed).split(", "))


def test_amounts_are_exact_from_json_numbers_and_from_text():
    policy = read_policy(
        {
            "overcommit": {"vcpu": 1.1, "memoryGiB": "0.1"},
            "hostReserve": {"vcpu": 0.1, "memoryGiB": "0.5"},
        },
        "exclusive",
    )
    assert policy.ratios == {"vcpu": Decimal("1.1"), "memoryGiB": Decimal("0.1")}
    assert (policy.host_reserve.vcpu, policy.host_reserve.memory_gib) == (100, 512)


@pytest.mark.parametrize(
    ("given_ratio", "kept"), [(0, "0.1"), (0.05, "0.1"), (1e6, "100"), ("100.5", "100"), (2, "2")]
)
def test_overcommit_is_clamped_to_a_tenth_and_a_hundred(given_ratio, kept):
    policy = read_policy({"overcommit": {"vcpu": given_ratio}}, "exclusive")
    assert policy.ratios == {"vcpu": Decimal(kept), "memoryGiB": Decimal(1)}


@pytest.mark.parametrize("never", ["0", "0s", "0d", "PT0S", "P0D"])
def test_never_to_wait_can_be_said(never):
    assert read_policy({"maxPending": never}, "mig").max_pending == timedelta(0)


def test_an_empty_policy_reads_as_the_defaults():
    policy = read_policy({}, "exclusive")
    assert policy.max_pending == timedelta(hours=24)
    assert (policy.placement, policy.mode_change) == ("fragmentation", "idle")
    assert policy.join_attestors == ["join-token"]
    assert policy.rollout.max_unavailable == 1
    assert policy.pages is None
    assert [policy.single_tenant, policy.open_ended, policy.preemptible] == [False] * 3


def test_null_is_absent_everywhere():
    policy = {
        "maxPending": None,
        "replicas": None,
        "window": {"minimum": None},
        "hugepages": {"2Mi": None},
        "gpu": None,
        "hostReserve": {"vcpu": None},
    }
    assert policy_problems(policy, "exclusive", "H100") == []
    assert read_policy(policy, "exclusive").max_pending == timedelta(hours=24)
    assert read_policy(policy, "exclusive").pages is None


def test_huge_pages_of_one_size_leave_none_of_the_other():
    assert read_policy({"hugepages": {"1Gi": 4}}, "mig").pages == {"2Mi": 0, "1Gi": 4}


def test_unknown_fields_are_no_problem_and_are_listed_by_their_paths():
    policy = {
        "colour": "green",
        "maxpending": "6h",
        "gpu": {"fan": 3, "ecc": True},
        "acceptance": [{"kind": "diag.nvml", "minutes": 5}],
        "kubernetes": {"labels": {"anything": "goes"}},
    }
    assert policy_problems(policy, "exclusive", "H100") == []
    assert unknown_fields(policy) == ["acceptance[0].minutes", "colour", "gpu.fan", "maxpending"]


def test_a_field_that_is_spelled_almost_like_a_known_one_is_told_apart_from_a_foreign_one():
    given_names = ["maxpending", "min_layout", "single-tenant", "zzz", "colour"]
    assert [near_miss(each) for each in given_names] == [
        "maxPending",
        "migLayout",
        "singleTenant",
        None,
        None,
    ]


def test_an_unknown_field_of_a_closed_object_is_refused_with_the_near_one():
    [problem] = policy_problems({"hostReserve": {"vcpus": 4}}, "mig", "H100")
    assert (problem.field, problem.allowed) == ("policy.hostReserve.vcpus", "vcpu, memoryGiB")
    assert problem.hint == "Did you mean vcpu?"


def test_a_stored_value_that_does_not_read_any_more_does_not_make_the_pool_unusable():
    policy = read_stored({"placement": "as I like", "maxPending": "6h"})
    assert (policy.placement, policy.max_pending) == ("fragmentation", timedelta(hours=6))


def test_the_schema_knows_every_field_and_takes_what_reads():
    schema = policy_schema()
    assert set(schema["properties"]) == set(names_of(PoolPolicy))
    assert schema["$defs"]["Overcommit"]["additionalProperties"] is False
    assert schema["properties"]["replicas"]["anyOf"][0] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 48,
    }
    assert "additionalProperties" not in schema
    json.dumps(schema)


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec=None), max_size=12)
    | st.sampled_from(["6h", "0", "1/3", "all-1g.10gb", "dynamic", "mixed:3g.40gb", "25%", "on"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=8)
            | st.sampled_from(
                ["kind", "vcpu", "memoryGiB", "2Mi", "minimum", "step", "labels", "taints", "key"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
POLICIES = st.dictionaries(
    st.sampled_from(names_of(PoolPolicy)) | st.text(max_size=10), ANYTHING, max_size=8
)


@given(
    POLICIES,
    st.sampled_from(["exclusive", "mig", "timeslice", "mps"]),
    st.sampled_from(["H100", "A30", "T4", "RTX 6000D"]),
)
def test_any_json_is_read_or_refused_and_never_changed(policy, sharing, model):
    before = copy.deepcopy(policy)
    found = policy_problems(policy, sharing, model)
    for name in unknown_fields(policy):
        near_miss(name)
    assert isinstance(read_stored(policy), PoolPolicy)
    if found:
        assert all(isinstance(each, ApportionError) for each in found)
        assert all(
            str(each.field).startswith("policy.") or "[" in str(each.field) for each in found
        )
        assert all(str(each) for each in found)
    else:
        assert isinstance(read_policy(policy, sharing), PoolPolicy)
    assert json.dumps(policy, sort_keys=True) == json.dumps(before, sort_keys=True)
