"""A choice in the words of Slurm and Kubernetes."""

import pytest
import yaml

from apportion.planning import (
    ClusterGpuCaps,
    FractionalAsk,
    kubernetes_manifest,
    select_mechanism,
    slurm_options,
)

MIG = ClusterGpuCaps(supports_mig=True)
TIMESLICE = ClusterGpuCaps(supports_timeslice=True)
MPS = ClusterGpuCaps(supports_mps=True)


@pytest.mark.parametrize(
    ("ask", "caps", "line"),
    [
        (FractionalAsk("a", gpus=2), MIG, "--gres=gpu:2"),
        (FractionalAsk("a"), ClusterGpuCaps(gpu_model="Tesla T4"), "--gres=gpu:t4:1"),
        (FractionalAsk("a", 0.25), MIG, "--gres=gpu:a100_2g.10gb:1"),
        (
            FractionalAsk("a", mig_profile="1g.10gb+me"),
            ClusterGpuCaps(supports_mig=True, gpu_model="NVIDIA H100 80GB HBM3"),
            "--gres=gpu:h100_1g.10gb+me:1",
        ),
        (FractionalAsk("a", "1/3"), MPS, "--gres=mps:34"),
        (FractionalAsk("a", 0.25), TIMESLICE, "--gres=shard:25"),
        (
            FractionalAsk("a", 0.3),
            ClusterGpuCaps(supports_timeslice=True, slots_per_gpu=8),
            "--gres=shard:3",
        ),
    ],
)
def test_slurm_gets_the_gres_line(ask, caps, line):
    lines = slurm_options(select_mechanism(ask, caps), caps)
    assert lines[-1] == f"#SBATCH {line}"
    assert all(comment.startswith("# gres.conf: ") for comment in lines[:-1])


def documents(ask: FractionalAsk, caps: ClusterGpuCaps):
    limits, claim = yaml.safe_load_all(kubernetes_manifest(select_mechanism(ask, caps), ask.label))
    assert (claim["apiVersion"], claim["kind"]) == ("resource.k8s.io/v1", "ResourceClaim")
    return limits["resources"]["limits"], claim


def test_kubernetes_gets_a_profiles_own_resource_and_a_claim_for_it():
    limits, claim = documents(FractionalAsk("My Job", mig_profile="2g.10gb"), MIG)
    assert limits == {"nvidia.com/mig-2g.10gb": 1}
    assert claim["metadata"] == {"name": "my-job"}
    (request,) = claim["spec"]["devices"]["requests"]
    assert request["exactly"] == {
        "deviceClassName": "mig.nvidia.com",
        "count": 1,
        "selectors": [
            {"cel": {"expression": "device.attributes['gpu.nvidia.com'].profile == '2g.10gb'"}}
        ],
    }
    assert "config" not in claim["spec"]["devices"]


def test_profiles_with_and_without_media_engines_keep_different_names():
    caps = ClusterGpuCaps(supports_mig=True, gpu_model="rtx-pro-6000-blackwell-server")
    names = [
        next(iter(documents(FractionalAsk("a", mig_profile=name), caps)[0]))
        for name in ("1g.24gb", "1g.24gb+me", "1g.24gb+gfx", "1g.24gb+me.all", "1g.24gb-me")
    ]
    assert names == [
        "nvidia.com/mig-1g.24gb",
        "nvidia.com/mig-1g.24gb.me",
        "nvidia.com/mig-1g.24gb.gfx",
        "nvidia.com/mig-1g.24gb.me.all",
        "nvidia.com/mig-1g.24gb-me",
    ]


def test_whole_gpus_are_counted():
    limits, claim = documents(FractionalAsk("a", gpus=2), MIG)
    assert limits == {"nvidia.com/gpu": 2}
    exactly = claim["spec"]["devices"]["requests"][0]["exactly"]
    assert exactly == {"deviceClassName": "gpu.nvidia.com", "count": 2}


@pytest.mark.parametrize(
    ("caps", "sharing"),
    [
        (
            TIMESLICE,
            {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Default"}},
        ),
        (MPS, {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 25}}),
    ],
)
def test_a_shared_gpu_is_one_replica_or_a_claim_with_its_sharing(caps, sharing):
    limits, claim = documents(FractionalAsk("a", 0.25), caps)
    assert limits == {"nvidia.com/gpu.shared": 1}
    (config,) = claim["spec"]["devices"]["config"]
    assert config["requests"] == ["gpu"]
    assert config["opaque"]["driver"] == "gpu.nvidia.com"
    assert config["opaque"]["parameters"] == {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "GpuConfig",
        "sharing": sharing,
    }


@pytest.mark.parametrize(
    ("label", "name"), [("JPCP", "jpcp"), ("a_b/c", "a-b-c"), ("é", "gpu"), ("x" * 99, "x" * 63)]
)
def test_a_claims_name_is_one_that_kubernetes_takes(label, name):
    assert documents(FractionalAsk(label), ClusterGpuCaps())[1]["metadata"]["name"] == name
