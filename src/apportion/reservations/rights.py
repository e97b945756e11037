"""Where a caller may reserve what: in pools that are there for it, as access policies allow."""

from collections.abc import Mapping, Sequence
from typing import Final

from apportion.authority.service import Caller, authorize
from apportion.errors import ForbiddenError, NotFoundError
from apportion.pools.service import PoolRecord

_CREATE: Final = "compute:reservations:create"
_UPDATE: Final = "compute:reservations:update"


class Rights:
    """What a caller may reserve; what several asks of a batch have in common is decided once."""

    def __init__(self, caller: Caller, pools: Mapping[str, PoolRecord]) -> None:
        self._caller = caller
        self._pools = pools
        self._allowed: set[tuple[str, tuple[tuple[str, int], ...]]] = set()

    def find(self, pool_ids: Sequence[str]) -> list[PoolRecord]:
        """Return pools that an ask names; NotFoundError for one that is not there for the caller.

        One that is archived is not, for its owner either.
        """
        for pool_id in pool_ids:
            if pool_id not in self._pools:
                raise NotFoundError("no such pool", field="pool_id", given=pool_id)
        return [self._pools[pool_id] for pool_id in pool_ids]

    def check(self, pools: Sequence[PoolRecord], attributes: Mapping[str, int]) -> None:
        """Raise ForbiddenError, which names the pool and the policies, unless all are allowed."""
        for pool in pools:
            question = (pool.id, tuple(attributes.items()))
            if question not in self._allowed:
                _authorize(self._caller, _CREATE, pool, attributes)
                self._allowed.add(question)


def check_update(
    caller: Caller, pool: PoolRecord, attributes: Mapping[str, int], *, longer: bool
) -> None:
    """Raise ForbiddenError unless a reservation may come to be one with these attributes.

    One that gets longer might be asked for anew: else a limit on how long one may last would hold
    for those only who do not ask in two steps.
    """
    _authorize(caller, _UPDATE, pool, attributes)
    if longer:
        _authorize(caller, _CREATE, pool, attributes)


def _authorize(
    caller: Caller, action: str, pool: PoolRecord, attributes: Mapping[str, int]
) -> None:
    try:
        authorize(caller, action, pool.facts, attributes)
    except ForbiddenError as error:
        raise ForbiddenError(
            f"pool {pool.name}: {error.message}",
            field="pool_id",
            given=pool.id,
            hint=error.hint,
            details={**error.details, "pool_id": pool.id},
        ) from None
