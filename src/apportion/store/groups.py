"""One transaction for many who come at the same time.

Whoever comes while a group is at work goes with the next one. There is no timer: who comes alone
does not wait, and the busier it is, the larger the groups and the less each one costs.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextvars import Context
from typing import Final, Generic, TypeVar

READ_MAX: Final = 500
"""The most asks that one query answers."""

Ask = TypeVar("Ask")
Answer = TypeVar("Answer")


class Groups(Generic[Ask, Answer]):
    """Runs ``work`` for the asks of one key in groups, one group after the other.

    ``work`` returns an answer for each ask, in their order; ``size`` says how many an ask counts
    as, and a group has at most ``most`` of them, or a single ask. Groups of different keys do not
    wait for each other. Where a group fails, each of its asks is tried alone: what is wrong with
    one is no business of the others.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Ask]], Awaitable[Sequence[Answer]]],
        *,
        most: int,
        size: Callable[[Ask], int] = lambda _: 1,
    ) -> None:
        self._work = work
        self._most = most
        self._size = size
        self._waiting: dict[Hashable, deque[_Entry[Ask, Answer]]] = {}
        self._serving: set[asyncio.Task[None]] = set()

    async def ask(self, key: Hashable, ask: Ask) -> Answer:
        """Return the answer to an ask, as ``work`` gave it; raises what ``work`` raised for it."""
        entry = _Entry[Ask, Answer](ask)
        waiting = self._waiting.get(key)
        if waiting is None:
            self._waiting[key] = deque([entry])
            # In a context of its own: what it logs belongs to no single request.
            task = asyncio.create_task(self._serve(key), context=Context())
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
        else:
            waiting.append(entry)
        return await entry.answer

    async def _serve(self, key: Hashable) -> None:
        waiting = self._waiting[key]
        try:
            while waiting:
                await self._answer(self._next(waiting))
        finally:
            del self._waiting[key]
            for entry in waiting:
                entry.answer.cancel()

    def _next(self, waiting: "deque[_Entry[Ask, Answer]]") -> "list[_Entry[Ask, Answer]]":
        """Take those who are next, in the order in which they came, and who still want it."""
        group: list[_Entry[Ask, Answer]] = []
        room = self._most
        while waiting and (not group or self._size(waiting[0].ask) <= room):
            entry = waiting.popleft()
            if not entry.answer.done():
                group.append(entry)
                room -= self._size(entry.ask)
        return group

    async def _answer(self, group: "Sequence[_Entry[Ask, Answer]]") -> None:
        try:
            answers = await self._work([entry.ask for entry in group]) if group else ()
        except Exception as error:  # noqa: BLE001 - it is raised again where the ask came from
            if len(group) == 1:
                group[0].fail(error)
            else:
                await asyncio.gather(*(self._answer([entry]) for entry in group))
        else:
            for entry, answer in zip(group, answers, strict=True):
                entry.succeed(answer)


class _Entry(Generic[Ask, Answer]):
    """An ask, and where its answer is waited for; who no longer waits needs none."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def succeed(self, answer: Answer) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
