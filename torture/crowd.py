"""Many workers at once, somebody who kills their connections, and a list of what went wrong."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import psycopg
from psycopg import AsyncConnection

from apportion.errors import ApportionError


@dataclass(slots=True)
class Report:
    """What an attack did, how much of it there must be at least, and which rules were broken."""

    least_in_a_minute: Mapping[str, int]
    counts: Counter[str] = field(default_factory=Counter[str])
    violations: list[str] = field(default_factory=list[str])

    def violate(self, text: str) -> None:
        """Note a broken rule once."""
        if text not in self.violations:
            self.violations.append(text)

    def took(self, what: str, seconds: float) -> None:
        """Note how long something took, of which the longest is told, in milliseconds."""
        name = f"{what}, longest ms"
        self.counts[name] = max(self.counts[name], round(seconds * 1000))


Step = Callable[[random.Random], Awaitable[None]]


async def crowd(
    report: Report,
    steps: Mapping[str, tuple[int, Step]],
    *,
    workers: int,
    seconds: float,
    seed: str,
) -> None:
    """Let workers take weighted random steps for some seconds; refusals are counted, not failures.

    Whatever is no error of ours is a violation: a traceback is nobody's answer.
    """
    ends = monotonic() + seconds
    names = list(steps)
    weights = [steps[name][0] for name in names]

    async def work(number: int) -> None:
        # Each worker draws from its own sequence, so that the seed says what is tried.
        chance = random.Random(f"{seed}/{number}")
        while monotonic() < ends:
            [name] = chance.choices(names, weights)
            try:
                await steps[name][1](chance)
                report.counts[name] += 1
            except ApportionError as error:
                report.counts[f"refused {error.code}"] += 1
                report.counts["refusals"] += 1
                if error.code == "INTERNAL":
                    report.violate(f"{name}: {error}: {error.details}")
            except Exception as error:  # noqa: BLE001 - the finding itself
                report.violate(f"{name}: {type(error).__name__}: {error}")

    await asyncio.gather(*(work(number) for number in range(workers)))


async def kill_connections(
    report: Report, dsn: str, chance: random.Random, *, often: float = 1
) -> None:
    """End random backends of the services for ever; those that judge have another name.

    That is eight a second, or ``often`` times that.
    """
    while True:
        # The database itself may be away: whoever attacks it, too, comes back.
        with suppress(psycopg.Error):
            async with await AsyncConnection.connect(
                dsn, autocommit=True, application_name="torture"
            ) as connection:
                await _kill_on(report, connection, chance, often)
        await asyncio.sleep(0.05)


async def _kill_on(
    report: Report, connection: AsyncConnection[Any], chance: random.Random, often: float
) -> None:
    while True:
        await asyncio.sleep(chance.uniform(0.05, 0.2) / often)
        cursor = await connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name = 'apportion' AND state <> 'idle'"
        )
        pids = [row[0] for row in await cursor.fetchall()]
        if pids:
            await connection.execute("SELECT pg_terminate_backend(%s)", [chance.choice(pids)])
            report.counts["kills"] += 1


async def stop(task: "asyncio.Task[None]") -> None:
    """Cancel a task that runs for ever, and wait for its end."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
