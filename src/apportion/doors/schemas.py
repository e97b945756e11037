"""What the bodies and answers of all rooms are made of."""

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

IdempotencyKey = Annotated[str, Field(min_length=1, max_length=200)]
# No control characters: what is stored comes out on terminals, where they move the cursor and more.
Text = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]
_NAME: Final = r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$"
_TENANT_ID: Final = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
Name = Annotated[str, Field(pattern=_NAME)]
TenantId = Annotated[str, Field(pattern=_TENANT_ID)]
Version = Annotated[int, Field(strict=True, ge=1, le=2**31 - 1)]

FORMS: Final = {
    _NAME: "1 to 63 lower-case letters, digits, dots and hyphens, a letter or digit first and last",
    _TENANT_ID: "1 to 63 lower-case letters, digits and hyphens, a letter or digit first and last",
}
"""What people type most, in words: nobody reads a pattern gladly."""


class Schema(BaseModel):
    """The base of all bodies: what is not known is refused, so that a slip is not ignored."""

    model_config = ConfigDict(extra="forbid")


class View(BaseModel):
    """The base of all answers: what a newer server adds is ignored by an older client."""

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True)


class Problem(BaseModel):
    """What went wrong: for a program (``code``, ``field``), for a person (``detail``, ``hint``)."""

    type: str = "about:blank"
    title: str
    status: int
    code: str
    detail: str
    field: str | None = None
    given: Any = None
    allowed: str | None = None
    hint: str | None = None
    details: dict[str, Any] = {}
    request_id: str | None = None
