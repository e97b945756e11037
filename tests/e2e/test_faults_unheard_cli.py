"""What nobody hears of, in the words of the command line: since when, and how many GPUs."""

import re
import time

import pytest

from apportion.testing.builders import gpu, inventory, pool_of

LAYOUT = "all-1g.10gb"
INSTANCES = tuple(f"1g.10gb@{at}" for at in range(7))


@pytest.fixture(scope="module")
def pool(server):
    """Give a pool with one node of two GPUs that reported once and falls silent."""
    document = inventory("quiet", *(gpu("H100", at, *INSTANCES, node="quiet") for at in range(2)))
    with server.client() as client:
        policy = {"reportInterval": "1s", "migLayout": LAYOUT}
        pool = client.create_pool(pool_of("H100", "mig", name="silence", **policy))
        node = client.join_node(pool.id, document)
        said = {"observed_generation": 1, "converged": {"mig-layout": 1}, "sequence": 1}
        data = document.model_dump(mode="json", by_alias=True)
        client.report_node(node.id, {**said, "inventory": data})
        device = {"class": "gpu.mig", "count": 1}
        asked = {"pool_id": pool.id, "devices": [device], "duration": "1h", "name": "held"}
        client.create_reservation(asked)
        deadline = time.monotonic() + 60
        while client.get_node(node.id).stale_since is None:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        client.create_reservation({**asked, "name": "waits"})
    return pool


WHO = r"1 node with 2 GPUs, the first since \d{4}-"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pool", "list"), r"2 GPUs since \d{4}-"),
        (("pool", "show", "silence"), rf"not heard of, and not counted as free: {WHO}"),
        (("pool", "show", "silence", "--draw"), r"quiet GPU 0.*unbookable: node_stale"),
        (("pool", "calendar", "silence"), r"nobody hears of its node since \d{4}-"),
        (("gpu", "calendar", "GPU-quiet-0"), r"nobody hears of its node since \d{4}-"),
        (("node", "list"), r"quiet +silence +stale +2 "),
        (("node", "show", "quiet"), r"stale since +\d{4}-"),
        (("atom", "list", "--pool", "silence"), r"no: node_stale"),
        (("layout", "status", "silence"), rf"not heard of: {WHO}"),
        (("layout", "plan", "silence", "all-3g.40gb"), rf"not heard of +{WHO}"),
        (("defrag", "silence", "--free-gpus"), rf"not heard of, and nothing moves there: {WHO}"),
        (("usage",), r"as booked, though not heard of in silence: 1 node with 1 GPU, the first"),
        (("doctor",), r"1 of 1 with 2 GPUs are not heard of: quiet \(since \d{4}-"),
        (
            ("reserve", "--pool", "silence", "--mig", "1g.10gb", "--for", "1h"),
            r"0 of 1 nodes: 1 not heard of",
        ),
        (
            ("reservation", "earliest", "--pool", "silence", "--mig", "1g.10gb", "--for", "1h"),
            r"node_stale: 0 of 1 nodes: 1 not heard of",
        ),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, tuple) else "",
)
def test_it_is_said_beside_the_number(cli, pool, words, said):
    told = cli(*words)
    assert re.search(said, told.out + told.err), told.out + told.err


def test_whoever_waits_is_told_since_when(cli, pool):
    [waits] = [
        each
        for each in cli("reservation", "list", "-o", "json").data["items"]
        if each["name"] == "waits"
    ]
    told = cli("reservation", "explain", waits["id"])
    assert "0 of 1 nodes: 1 not heard of" in told.out
    assert re.search(r"not heard of since \d{4}-.*, the first of these nodes", told.out)
