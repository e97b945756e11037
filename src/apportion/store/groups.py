"""One transaction for many who come at the same time.

Whoever comes while a group is at work goes with the next one. There is no timer: who comes alone
does not wait, and the busier it is, the larger the groups and the less each one costs.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Iterable, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

READ_MAX: Final = 500
"""The most asks that one query answers."""

AT_ONCE: Final = 16
"""How many items of one caller are gone through before others have their turn."""

AT_WORK_MAX: Final = 2
"""The most groups of a key that are at work: one decides while the database writes another's."""

Item = TypeVar("Item")
Ask = TypeVar("Ask")
Answer = TypeVar("Answer")
GoOn = Callable[[], None]
"""Lets the next group begin, before this one is through."""


async def in_turns(items: Iterable[Item]) -> AsyncGenerator[Item]:
    """Yield many items, with turns of others in between.

    Who works through hundreds in one go keeps a group waiting whose statement the database has done
    by then, and so all that wait for that group.
    """
    for at, item in enumerate(items, 1):
        yield item
        if at % AT_ONCE == 0:
            await asyncio.sleep(0)


class Groups(Generic[Ask, Answer]):
    """Runs ``work`` for the asks of one key in groups, one group after the other.

    ``work`` returns an answer for each ask, in their order; ``size`` says how many an ask counts
    as, and a group has at most ``most`` of them, or a single ask. What ``work`` is given beside the
    asks it may call when the next group can begin, while it does the rest. Groups of different keys
    do not wait for each other. Where a group fails, each of its asks is tried alone: what is wrong
    with one is no business of the others.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Ask], GoOn], Awaitable[Sequence[Answer]]],
        *,
        most: int,
        size: Callable[[Ask], int] = lambda _: 1,
    ) -> None:
        self._work = work
        self._most = most
        self._size = size
        self._lines: dict[Hashable, _Line[Ask, Answer]] = {}
        self._serving: set[asyncio.Task[None]] = set()

    async def ask(self, key: Hashable, ask: Ask) -> Answer:
        """Return the answer to an ask, as ``work`` gave it; raises what ``work`` raised for it."""
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line[Ask, Answer]()
        entry = _Entry[Ask, Answer](ask)
        line.waiting.append(entry)
        self._advance(key, line)
        return await entry.answer

    def _advance(self, key: Hashable, line: "_Line[Ask, Answer]") -> None:
        """Let the next group of a line begin, if it can."""
        if line.waiting and line.may_begin and line.at_work < AT_WORK_MAX:
            line.may_begin = False
            line.at_work += 1
            # In a context of its own: what it logs belongs to no single request.
            task = asyncio.create_task(self._serve(key, line), context=Context())
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
        elif not line.waiting and not line.at_work:
            self._lines.pop(key, None)

    async def _serve(self, key: Hashable, line: "_Line[Ask, Answer]") -> None:
        begun = False

        def go_on() -> None:
            nonlocal begun
            if not begun:
                begun = line.may_begin = True
                self._advance(key, line)

        try:
            await self._answer(self._next(line.waiting), go_on)
        except asyncio.CancelledError:
            for entry in line.waiting:
                entry.answer.cancel()
            line.waiting.clear()
            raise
        finally:
            line.at_work -= 1
            go_on()
            self._advance(key, line)

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

    async def _answer(self, group: "Sequence[_Entry[Ask, Answer]]", go_on: GoOn) -> None:
        try:
            answers = await self._work([entry.ask for entry in group], go_on) if group else ()
        except Exception as error:  # noqa: BLE001 - it is raised again where the ask came from
            if len(group) == 1:
                group[0].fail(error)
            else:
                await asyncio.gather(*(self._answer([entry], go_on) for entry in group))
        else:
            for entry, answer in zip(group, answers, strict=True):
                entry.succeed(answer)


@dataclass(slots=True)
class _Line(Generic[Ask, Answer]):
    """Who waits for the groups of one key, how many are at work, and whether one may begin."""

    waiting: "deque[_Entry[Ask, Answer]]" = field(default_factory=deque["_Entry[Ask, Answer]"])
    at_work: int = 0
    may_begin: bool = True


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
