"""Texts that PostgreSQL cannot hold, though JSON and URLs can carry them."""

from apportion.errors import InvalidInputError


def is_storable(text: str) -> bool:
    """Tell whether a text has neither U+0000 nor half of a surrogate pair."""
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)


def check_text(text: str, field: str) -> None:
    """Raise InvalidInputError for a text that could not be stored."""
    if not is_storable(text):
        raise InvalidInputError(
            "has a character that cannot be stored",
            field=field,
            given=ascii(text),
            allowed="text without U+0000 and without halves of surrogate pairs",
        )
