"""Objects by name or by id: people type names, which are unique only within one owner."""

from collections.abc import Iterable
from typing import Protocol, TypeVar

from apportion.errors import InvalidInputError, NotFoundError


class _Named(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=_Named)


def is_id(text: str) -> bool:
    """Tell an id from a name: no name has an underscore, and every id has one."""
    return "_" in text


def the_one(found: Iterable[T], text: str, *, field: str, what: str) -> T:
    """Return the one of this name among what was listed.

    Raises NotFoundError where there is none, InvalidInputError that lists the ids of several.
    """
    named = [each for each in found if each.name == text]
    if not named:
        raise NotFoundError(
            f"no such {what}", field=field, given=text, hint=f"`apportion {what} list` shows them"
        )
    if len(named) > 1:
        raise InvalidInputError(
            "several have this name",
            field=field,
            given=text,
            allowed=f"one of their ids: {', '.join(each.id for each in named)}",
        )
    return named[0]
