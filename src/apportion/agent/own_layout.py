"""The node's own configuration: a MIG layout that it has whatever its pool asks for.

migLayout:
from: node
layout: all-1g.10gb
"""

from pathlib import Path
from typing import Any, Final, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from apportion.errors import InvalidInputError
from apportion.nodes.outcomes import OwnLayout

_FIELD: Final = "config"


class _Layout(BaseModel):
    model_config = ConfigDict(extra="forbid")

    from_: Literal["pool", "node"] = Field(alias="from", default="pool")
    layout: str | None = Field(default=None, pattern=r"^[!-~]{1,200}$")
    mode_change: Literal["never", "idle", "reset", "reboot"] = Field(
        alias="modeChange", default="idle"
    )

    @model_validator(mode="after")
    def _says_which(self) -> Self:
        if (self.from_ == "node") != (self.layout is not None):
            raise ValueError("layout says which one the node has: with from: node, and only then")
        if (self.layout or "").lower() == "dynamic":
            raise ValueError(
                "dynamic is the pool's: nobody else knows which instances are asked for"
            )
        return self


class AgentConfig(BaseModel):
    """The file. Where it says nothing, the node is as its pool asks."""

    model_config = ConfigDict(extra="forbid")

    mig_layout: _Layout = Field(alias="migLayout", default=_Layout())

    @property
    def facts(self) -> dict[str, Any]:
        """What reports tell of it: the layout, where it is not the pool's."""
        if self.mig_layout.layout is None:
            return {}
        own = OwnLayout(layout=self.mig_layout.layout)
        return {"mig_layout": own.model_dump(by_alias=True)}

    @property
    def cut(self) -> dict[str, Any] | None:
        """What the unit ``mig-layout`` is to be instead of what a spec says; None: as that says."""
        if self.mig_layout.layout is None:
            return None
        return {"layout": self.mig_layout.layout, "mode_change": self.mig_layout.mode_change}


def read_config(path: Path, *, needed: bool) -> AgentConfig:
    """Read the file; one that is not there says nothing, unless it is needed.

    InvalidInputError where it cannot be read, or says what no file can.
    """
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except FileNotFoundError as error:
        if not needed:
            return AgentConfig()
        raise InvalidInputError("is not there", field=_FIELD, given=str(path)) from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidInputError(
            f"cannot be read: {error}", field=_FIELD, given=str(path)
        ) from error
    try:
        return AgentConfig.model_validate({} if content is None else content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise InvalidInputError(
            f"{where}: {first['msg']}", field=_FIELD, given=str(path), allowed=_ALLOWED
        ) from error


_ALLOWED: Final = "migLayout with from (pool, node), layout and modeChange"
