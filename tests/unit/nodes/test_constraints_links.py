"""NVLink domains against a judge that walks from GPU to GPU."""

from hypothesis import given
from hypothesis import strategies as st

from apportion.nodes.links import nvlink_domains

LINKS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 9)), max_size=12)


def rows(links):
    """Give eight GPUs; links lead to themselves and to GPUs that are not there, too."""
    return [
        {
            "id": 100 - at,
            "uuid": f"G{at}",
            "nvlink": [{"peer": f"G{other}", "links": 4} for one, other in links if one == at],
        }
        for at in range(8)
    ]


def reached(start, links):
    seen = {start}
    while True:
        further = {
            end for one, other in links for end in (one, other) if seen & {one, other} and end < 8
        } - seen
        if not further:
            return seen
        seen |= further


@given(LINKS)
def test_one_domain_is_what_links_lead_to(links):
    domains = nvlink_domains(rows(links))
    real = [(one, other) for one, other in links if one != other and other < 8]
    linked = {end for pair in real for end in pair}
    assert domains == {100 - at: 100 - max(reached(at, real)) for at in linked}
