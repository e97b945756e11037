"""Settings: a flag beats an ``APPORTION_…`` variable, which beats a line of the settings file.

The file is TOML: ``--config``, APPORTION_CONFIG, or ``apportion.toml`` in the state directory where
there is one. Its keys are the names below; a variable is ``APPORTION_`` and the name in capitals.
"""

import os
import tomllib
from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
)

from apportion.errors import InvalidInputError
from apportion.server.allowed import describe

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "json", "console"]


def _split(given: object) -> object:
    """Read a list out of a variable, which can only be text."""
    return [each.strip() for each in given.split(",")] if isinstance(given, str) else given


Networks = Annotated[
    tuple[IPv4Network | IPv6Network, ...],
    BeforeValidator(_split),
    WithJsonSchema({"type": "string", "format": "networks"}),
]

_PREFIX: Final = "APPORTION_"
_FILE: Final = "apportion.toml"


class Settings(BaseModel):
    """What a server is started with.

    ``database_url`` None means the embedded database in ``state``. A URL with a password belongs in
    a file that ``database_url_file`` names: variables and flags can be read by others.
    ``webhook_networks`` are those that webhooks may lead into beside the open network.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    state: Path
    host: Annotated[str, Field(min_length=1, max_length=255)] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 7070
    database_url: str | None = None
    database_url_file: Path | None = None
    key_file: Path | None = None
    node_clock_skew_seconds: Annotated[int, Field(ge=1, le=86_400)] = 300
    pool_size: Annotated[int, Field(ge=1, le=1000)] = 10
    webhook_networks: Networks = ()
    log_level: LogLevel = "info"
    log_format: LogFormat = "auto"


def load_settings(
    flags: Mapping[str, object],
    *,
    config: Path | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Settings:
    """Put the settings together; a flag that is None was not given.

    Raises InvalidInputError whose field is the flag, the variable or the file's line that is wrong.
    """
    given: dict[str, tuple[object, str]] = {
        name: (value, f"--{name.replace('_', '-')}")
        for name, value in flags.items()
        if value is not None
    }
    for name in Settings.model_fields:
        variable = f"{_PREFIX}{name.upper()}"
        if environment.get(variable):
            given.setdefault(name, (environment[variable], variable))
    state = _state(given.get("state", (None, ""))[0], environment)
    path = _config(config, environment, state)
    if path is not None:
        for name, value in _read_toml(path).items():
            given.setdefault(name, (value, f"{path}: {name}"))
    given.setdefault("state", (state, "--state"))
    return _checked(given)


def _state(given: object, environment: Mapping[str, str]) -> Path:
    if given is not None:
        return Path(str(given)).expanduser()
    base = environment.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "apportion"


def _config(flag: Path | None, environment: Mapping[str, str], state: Path) -> Path | None:
    if flag is not None:
        return flag.expanduser()
    if variable := environment.get(f"{_PREFIX}CONFIG"):
        return Path(variable).expanduser()
    path = state / _FILE
    return path if path.is_file() else None


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidInputError(
            f"cannot be read: {error.strerror}", field="config", given=str(path)
        ) from error
    except ValueError as error:
        raise InvalidInputError(
            f"is not TOML: {error}", field="config", given=str(path), allowed="lines as port = 7070"
        ) from error


def _checked(given: Mapping[str, tuple[object, str]]) -> Settings:
    try:
        settings = Settings.model_validate({name: value for name, (value, _) in given.items()})
    except ValidationError as error:
        raise _refusal(error, given) from None
    update: dict[str, object] = {"state": settings.state.expanduser()}
    if settings.database_url_file is not None:
        _, origin = given["database_url_file"]
        if settings.database_url is not None:
            raise InvalidInputError(
                "is given beside database_url",
                field=origin,
                given=str(settings.database_url_file),
                allowed="one of the two",
            )
        update["database_url"] = _secret(settings.database_url_file.expanduser(), origin)
    return settings.model_copy(update=update)


def _secret(path: Path, origin: str) -> str:
    try:
        return path.read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidInputError(
            f"cannot be read: {reason}", field=origin, given=str(path)
        ) from error


def _refusal(error: ValidationError, given: Mapping[str, tuple[object, str]]) -> InvalidInputError:
    first = error.errors()[0]
    name = str(first["loc"][0])
    value, origin = given[name]
    if first["type"] == "extra_forbidden":
        return InvalidInputError(
            "there is no such setting",
            field=origin,
            given=value,
            allowed=", ".join(Settings.model_fields),
        )
    schema = Settings.model_json_schema()["properties"][name]
    return InvalidInputError("is not accepted", field=origin, given=value, allowed=describe(schema))
