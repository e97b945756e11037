"""Join tokens are made, kept, listed and revoked from the command line; nodes are refused."""

import pytest


@pytest.fixture
def pool(server):
    return server.pool("H100", "exclusive")


def test_a_join_token_is_kept_in_a_file_and_revoked(cli, pool, tmp_path):
    file = tmp_path / "m.token"
    made = cli("node", "join-token", "create", pool.name, "--for", "2h", "--out", str(file))
    secret = file.read_text("utf-8").strip()
    assert (made.code, secret.startswith("apj_"), secret in made.out) == (0, True, False)
    assert f"--token-file {file}" in made.out
    listed = cli("node", "join-token", "list", "--pool", pool.name, "--state", "open", "-o", "json")
    [token] = listed.data["items"]
    assert token["class"] == "metal-host"
    asked = cli("node", "join-token", "revoke", token["id"], "--yes", "-o", "json")
    assert (asked.code, asked.data["state"]) == (0, "revoked")
    assert cli("node", "join-token", "list", "--pool", pool.name, "--state", "open").out.startswith(
        "No such join tokens."
    )


def test_a_token_without_a_file_is_shown_once(cli, pool):
    made = cli("node", "join-token", "create", pool.name)
    assert "apj_" in made.out
    assert "apportion agent join --server" in made.out
    wrong = cli("node", "join-token", "create", pool.name, "--class", "slurm-host")
    assert (wrong.code, "--class" in wrong.err) == (2, True)


def test_a_node_that_was_imported_has_no_key_to_revoke(cli, pool, server):
    from apportion.testing.builders import gpu, inventory

    with server.client() as client:
        node = client.join_node(pool.id, inventory("k1", gpu("H100", 0, node=f"{pool.name}-k1")))
    refused = cli("node", "revoke", node.id, "--yes")
    assert (refused.code, "no key" in refused.err) == (1, True)
