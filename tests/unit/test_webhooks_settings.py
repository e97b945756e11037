"""The setting that lets webhooks into networks: a list in a file, text in a variable."""

from ipaddress import ip_network

import pytest

from apportion.errors import InvalidInputError
from apportion.server.settings import load_settings


def test_no_network_is_open_to_webhooks_unless_it_is_named(tmp_path):
    assert load_settings({"state": tmp_path}, environment={}).webhook_networks == ()


def test_a_variable_holds_networks_with_commas_between(tmp_path):
    variables = {"APPORTION_WEBHOOK_NETWORKS": "10.0.0.0/8, fd00::/8"}
    got = load_settings({"state": tmp_path}, environment=variables)
    assert got.webhook_networks == (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))


def test_a_file_holds_a_list_of_them(tmp_path):
    (tmp_path / "apportion.toml").write_text('webhook_networks = ["10.0.0.0/8"]\n')
    got = load_settings({"state": tmp_path}, environment={})
    assert got.webhook_networks == (ip_network("10.0.0.0/8"),)


@pytest.mark.parametrize("given", ["10.0.0.0/33", "10.0.0.1/8", "intranet", "10.0.0.0/8;fd00::/8"])
def test_what_is_no_network_is_refused_with_what_is(tmp_path, given):
    with pytest.raises(InvalidInputError) as caught:
        load_settings({"state": tmp_path}, environment={"APPORTION_WEBHOOK_NETWORKS": given})
    assert (caught.value.field, caught.value.given) == ("APPORTION_WEBHOOK_NETWORKS", given)
    assert caught.value.allowed == "networks such as 10.0.0.0/8, separated by commas"
