"""What is said of a policy at the command line and over HTTP, on a real server."""


def test_a_slip_in_a_fields_name_is_told_with_the_field_that_was_meant(cli):
    said = cli(
        "pool",
        "validate",
        "slip",
        "--gpu-model",
        "H100",
        "--policy",
        '{"maxpending": "6h", "x": 1}',
    )
    assert said.code == 0
    assert said.out.splitlines() == [
        "unknown: maxpending is stored as given; did you mean maxPending?",
        "unknown: x is stored as given",
        "It would be accepted.",
    ]
