"""Reading a fleet file: its values, whose they are, and all that is wrong with it at once."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from apportion.errors import ApportionError, InvalidInputError
from apportion.fleet.documents import Document, Path, read_document
from apportion.fleet.schemas import Fleet, Owned, Pool, Tenant
from apportion.fleet.values import limit_of

Key = tuple[str, str]
"""Whose something is, and its name."""

_SHOWN: Final = 60


@dataclass(frozen=True, slots=True)
class Refusal:
    """Something that cannot be done, where the file asks for it, and what would help."""

    path: Path
    place: str
    error: ApportionError

    def __str__(self) -> str:
        """Say it in one sentence that begins with where it stands."""
        shown = InvalidInputError(
            self.error.message,
            given=self.error.given,
            allowed=self.error.allowed,
            hint=self.error.hint,
        )
        return f"{self.place}: {shown}"


@dataclass(frozen=True, slots=True)
class FleetFile:
    """A fleet as a file has it."""

    fleet: Fleet
    document: Document

    def refusal(self, path: Sequence[str | int], error: ApportionError) -> Refusal:
        """Return a refusal of what stands at a path."""
        return Refusal(tuple(path), self.document.place(path), error)


def read_fleet(text: str, name: str) -> FleetFile:
    """Read a fleet file; InvalidInputError tells of everything that is wrong, each with its line.

    What can be judged only with the server in view is left to the plan.
    """
    document = read_document(text, name)
    try:
        fleet = Fleet.model_validate(document.value)
    except ValidationError as error:
        raise refused([_refusal(document, each) for each in _told_once(error)]) from None
    read = FleetFile(fleet, document)
    if found := [*_twice(read), *_amounts(read)]:
        raise refused(found)
    return read


def refused(refusals: Sequence[Refusal]) -> InvalidInputError:
    """Return one error that tells of several refusals."""
    facts = [
        {
            "place": each.place,
            "message": each.error.message,
            "given": each.error.given,
            "allowed": each.error.allowed,
        }
        for each in refusals
    ]
    if len(refusals) == 1:
        error = refusals[0].error
        return InvalidInputError(
            error.message,
            field=refusals[0].place,
            given=error.given,
            allowed=error.allowed,
            hint=error.hint,
            details={"problems": facts},
        )
    lines = "\n".join(f"  {each}" for each in refusals)
    return InvalidInputError(
        f"{len(refusals)} things are wrong:\n{lines}", details={"problems": facts}
    )


def _told_once(error: ValidationError) -> Iterator[ErrorDetails]:
    """Give one error for each path: a limit that is of no kind is told of once, not three times."""
    seen: set[Path] = set()
    for each in error.errors(include_url=False):
        path = _path(each["loc"])
        if path not in seen:
            seen.add(path)
            yield each


def _path(loc: Sequence[str | int]) -> Path:
    """Return where a value stands, without what pydantic adds: which of several kinds it tried."""
    limit = _limit_in(loc)
    return tuple(loc if limit is None else loc[: limit + 1])[: -1 if loc[-1] == "[key]" else None]


def _limit_in(loc: Sequence[str | int]) -> int | None:
    """Return where in a path a limit stands; None where it leads to none."""
    for at in (3, 5):
        if len(loc) > at + 1 and loc[at - 1] in {"owner_quota", "quota"} and loc[at + 1] != "[key]":
            return at
    return None


def _refusal(document: Document, error: ErrorDetails) -> Refusal:
    path = _path(error["loc"])
    given, allowed, context = error["input"], None, error.get("ctx", {})
    match error["type"]:
        case _ if _limit_in(error["loc"]) is not None:
            words, allowed = "is no limit", 'a number from 0, such as 8, 2.5 or "7/2"; unlimited'
        case "extra_forbidden":
            words, given = "no such field", None
        case "missing":
            words, given = "is needed", None
        case "string_pattern_mismatch":
            words, allowed = "is written in another way", f"the form {context['pattern']}"
        case _:
            words = error["msg"].removeprefix("Input ").removeprefix("String ")
    return Refusal(
        path, document.place(path), InvalidInputError(words, given=_short(given), allowed=allowed)
    )


def _short(given: Any) -> Any:
    if isinstance(given, dict | list):
        return None
    return given[:_SHOWN] if isinstance(given, str) else given


def _twice(read: FleetFile) -> Iterator[Refusal]:
    """Refuse two objects of one name: neither could be told from the other."""
    for kind, objects in sections(read.fleet).items():
        first: dict[object, int] = {}
        for at, each in enumerate(objects):
            key = each.id if isinstance(each, Tenant) else (each.tenant, each.name)
            if key in first:
                field = "id" if isinstance(each, Tenant) else "name"
                words = f"is the name of {kind}[{first[key]}] already"
                yield read.refusal(
                    (kind, at, field), InvalidInputError(words, given=getattr(each, field))
                )
            first.setdefault(key, at)


def sections(fleet: Fleet) -> Mapping[str, Sequence[Tenant | Owned]]:
    """Return the objects of each kind."""
    return {
        "tenants": fleet.tenants or [],
        "sites": fleet.sites or [],
        "pools": fleet.pools or [],
        "policies": fleet.policies or [],
    }


def _amounts(read: FleetFile) -> Iterator[Refusal]:
    for at, pool in enumerate(read.fleet.pools or []):
        for path, limits in _limits(pool):
            for resource, limit in limits.items():
                try:
                    limit_of(resource, limit)
                except InvalidInputError as error:
                    yield read.refusal(("pools", at, *path, resource), error)


def _limits(pool: Pool) -> Iterator[tuple[Path, Mapping[Any, int | str]]]:
    if pool.owner_quota is not None:
        yield ("owner_quota",), pool.owner_quota
    for tenant, offer in (pool.offers or {}).items():
        yield ("offers", tenant, "quota"), offer.quota


def by_owner(objects: Sequence[Owned] | None, acting: str) -> dict[Key, int]:
    """Return where in the file each object of a kind stands, by whose it is and its name."""
    return {(each.tenant or acting, each.name): at for at, each in enumerate(objects or [])}
