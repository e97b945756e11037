"""Settings: flags beat variables beat the file, and what is wrong is named by where it stands."""

from pathlib import Path

import pytest

from apportion.errors import InvalidInputError
from apportion.server.settings import load_settings


def refusal(*args, **kwargs):
    with pytest.raises(InvalidInputError) as caught:
        load_settings(*args, **kwargs)
    return caught.value


def test_without_anything_the_defaults_hold():
    got = load_settings({"port": None}, environment={"HOME": "/h", "XDG_STATE_HOME": "/s"})
    assert (got.state, got.host, got.port) == (Path("/s/apportion"), "127.0.0.1", 7070)
    assert (got.database_url, got.pool_size) == (None, 10)
    assert (got.log_level, got.log_format) == ("info", "auto")


def test_a_flag_beats_a_variable_and_a_variable_the_file(tmp_path):
    (tmp_path / "apportion.toml").write_text('host = "file"\nport = 1\npool_size = 3\n')
    variables = {"APPORTION_HOST": "variable", "APPORTION_PORT": "2"}
    got = load_settings({"state": tmp_path, "port": 4}, environment=variables)
    assert (got.port, got.host, got.pool_size) == (4, "variable", 3)


def test_the_file_is_that_of_the_flag_then_of_the_variable_then_of_the_state(tmp_path):
    paths = {}
    for name, port in (("flag", 1), ("variable", 2), ("apportion", 3)):
        paths[name] = tmp_path / f"{name}.toml"
        paths[name].write_text(f"port = {port}\n")
    variables = {"APPORTION_CONFIG": str(paths["variable"]), "APPORTION_STATE": str(tmp_path)}
    assert load_settings({}, config=paths["flag"], environment=variables).port == 1
    assert load_settings({}, environment=variables).port == 2
    del variables["APPORTION_CONFIG"]
    assert load_settings({}, environment=variables).port == 3


def test_an_empty_variable_is_one_that_is_not_set(tmp_path):
    got = load_settings({"state": tmp_path}, environment={"APPORTION_PORT": ""})
    assert got.port == 7070


def test_variables_of_the_client_are_none_of_the_servers_business(tmp_path):
    load_settings({"state": tmp_path}, environment={"APPORTION_TOKEN": "apt_x"})


def test_a_wrong_value_is_named_by_where_it_stands(tmp_path):
    config = tmp_path / "c.toml"
    config.write_text("pool_size = 0\n")
    flag = refusal({"port": 70000}, environment={})
    assert (flag.field, flag.given, flag.allowed) == (
        "--port",
        70000,
        "a whole number of 0 to 65535",
    )
    variable = refusal({}, environment={"APPORTION_LOG_LEVEL": "loud"})
    assert (variable.field, variable.given) == ("APPORTION_LOG_LEVEL", "loud")
    assert variable.allowed == "debug, info, warning, error"
    line = refusal({}, config=config, environment={})
    assert (line.field, line.given) == (f"{config}: pool_size", 0)


def test_a_setting_that_does_not_exist_is_refused_and_the_others_listed(tmp_path):
    config = tmp_path / "c.toml"
    config.write_text("prot = 7070\n")
    got = refusal({}, config=config, environment={})
    assert got.field == f"{config}: prot"
    assert "port" in got.allowed


@pytest.mark.parametrize("text", ["port =", "\xff"])
def test_a_file_that_is_no_toml_is_named(tmp_path, text):
    config = tmp_path / "c.toml"
    config.write_bytes(text.encode("latin-1"))
    got = refusal({}, config=config, environment={})
    assert (got.field, got.given) == ("config", str(config))


def test_a_file_that_was_named_and_is_not_there_is_an_error(tmp_path):
    got = refusal({}, environment={"APPORTION_CONFIG": str(tmp_path / "none.toml")})
    assert got.message == "cannot be read: No such file or directory"


def test_a_secret_is_read_from_the_file_that_a_setting_names(tmp_path):
    secret = tmp_path / "url"
    secret.write_text("postgresql://u:p@h/d\n")
    variables = {"APPORTION_DATABASE_URL_FILE": str(secret)}
    assert load_settings({}, environment=variables).database_url == "postgresql://u:p@h/d"
    both = refusal({}, environment={**variables, "APPORTION_DATABASE_URL": "x"})
    assert both.field == "APPORTION_DATABASE_URL_FILE"
    secret.unlink()
    gone = refusal({}, environment=variables)
    assert (gone.field, gone.given) == ("APPORTION_DATABASE_URL_FILE", str(secret))


def test_a_state_under_the_home_directory_is_found(monkeypatch):
    monkeypatch.setenv("HOME", "/h")
    assert load_settings({"state": Path("~/x")}, environment={}).state == Path("/h/x")
