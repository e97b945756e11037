"""The one family of errors that reaches a person or a program.

Every error carries a stable ``code`` (the API's problem+json and the CLI's messages show it), and
where it concerns one value: the field's name, what was given and what is allowed. Rooms raise
these; doors (HTTP, CLI) only render them.
"""

from collections.abc import Mapping
from typing import ClassVar


class ApportionError(Exception):
    """Something went wrong that a person can act on.

    ``field`` is the path of the offending input (``devices[0].count``), ``given`` what came in and
    ``allowed`` what would have been accepted, each in the reader's own notation. ``details`` holds
    machine-readable facts (counts, ids, instants); ``hint`` is one sentence on what would help.
    """

    code: ClassVar[str] = "INTERNAL"

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        given: object = None,
        allowed: str | None = None,
        hint: str | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.given = given
        self.allowed = allowed
        self.hint = hint
        self.details: dict[str, object] = dict(details or {})

    def __str__(self) -> str:
        """Give one sentence that names the field, what was given and what is allowed."""
        text = self.message
        if self.field is not None and not text.startswith(self.field):
            text = f"{self.field}: {text}"
        if self.given is not None:
            text += f" (given: {self.given!r})"
        if self.allowed is not None:
            text += f"; allowed: {self.allowed}"
        if self.hint is not None:
            text += f". {self.hint}"
        return text


class InvalidInputError(ApportionError):
    """The request itself is wrong; the same request will never be accepted."""

    code = "INVALID_INPUT"


class UnauthenticatedError(ApportionError):
    """No caller could be told from the request."""

    code = "UNAUTHENTICATED"


class ForbiddenError(ApportionError):
    """The caller is known and may not do this in its own tenant."""

    code = "FORBIDDEN"


class NotFoundError(ApportionError):
    """There is no such object for this caller."""

    code = "NOT_FOUND"


class ConflictError(ApportionError):
    """Somebody else was first, or the same key was used for something else."""

    code = "CONFLICT"


class InvalidStateError(ApportionError):
    """The object exists and is in a state that does not allow this."""

    code = "INVALID_STATE"


class QuotaExceededError(ApportionError):
    """The tenant's quota on the pool does not cover the request."""

    code = "QUOTA_EXCEEDED"


class UnavailableError(ApportionError):
    """A part that the answer needs cannot be reached now; try again."""

    code = "UNAVAILABLE"
