"""Idempotency keys: the field of a body and the header of the same name mean the same."""

from collections.abc import Mapping
from typing import Annotated, Any, Protocol, Self, TypeVar

from fastapi import Header

from apportion.errors import InvalidInputError

KeyHeader = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="The same as the field idempotency_key: a retry returns the first answer.",
    ),
]


class _Keyed(Protocol):
    idempotency_key: str | None

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Self: ...


Keyed = TypeVar("Keyed", bound=_Keyed)


def one_key(request: Keyed, header: str | None) -> Keyed:
    """Return the request with its key, wherever it was given.

    Raises InvalidInputError where body and header differ: either could be the one that was meant.
    """
    if header is None or header == request.idempotency_key:
        return request
    if request.idempotency_key is not None:
        raise InvalidInputError(
            "differs from the header Idempotency-Key",
            field="idempotency_key",
            given=request.idempotency_key,
            allowed="the same key in both, or in one of them",
        )
    return request.model_copy(update={"idempotency_key": header})
