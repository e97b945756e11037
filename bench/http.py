"""Callers that ask over HTTP as fast as they are answered, in a process of their own.

Each has one connection and sends its next request when the last answer is complete. Requests are
bytes made beforehand as far as they can be, and of answers no more is read than their end and how
many reservations they give a place: the callers must not be what is measured.
"""

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Final, Literal, cast

import uvloop

Kind = Literal["noop", "single", "batch"]

BATCH: Final = 100
_PLACED: Final = b'"state":"active"'


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of which servers, by how many callers, for how long.

    ``lead`` seconds pass before it is measured: until then queues fill, and nothing comes out.
    """

    kind: Kind
    ports: tuple[int, ...]
    token: str
    pool_id: str
    name: str
    callers: int
    lead: float
    seconds: float


@dataclass(slots=True)
class Answers:
    """How many reservations (or empty answers) came while it was measured, and in how long each.

    It is measured for ``seconds`` from ``begin`` on, or from the first answer if that came later;
    all the while every caller has a request under way. ``told`` counts what came at any time.
    """

    begin: float
    seconds: float
    done: int = 0
    told: int = 0
    latencies: list[float] = field(default_factory=list[float])

    @property
    def per_second(self) -> float:
        """The rate while it was measured."""
        return self.done / self.seconds

    def over(self, instant: float) -> bool:
        """Tell whether no more is to be asked."""
        return self.told > 0 and instant >= self.begin + self.seconds

    def note(self, sent: float, came: float, count: int) -> None:
        """Count an answer."""
        if not self.told:
            self.begin = max(self.begin, came)
        self.told += count
        if self.begin < came <= self.begin + self.seconds:
            self.done += count
            self.latencies.append(came - sent)


def run(load: Load) -> Answers:
    """Put on a load; raises RuntimeError for an answer that is not a place for every ask."""
    return uvloop.run(_run(load))


async def _run(load: Load) -> Answers:
    loop = asyncio.get_running_loop()
    lines: list[_Line] = []
    for number in range(load.callers):
        port = load.ports[number % len(load.ports)]
        _, line = await loop.create_connection(_Line, "127.0.0.1", port)
        lines.append(line)
    answers = Answers(time.perf_counter() + load.lead, load.seconds)
    asking = (_ask(line, _requests(load, at), answers) for at, line in enumerate(lines))
    await asyncio.gather(*asking)
    for line in lines:
        line.close()
    return answers


async def _ask(line: "_Line", requests: Iterator[tuple[bytes, int]], answers: Answers) -> None:
    for request, wanted in requests:
        sent = time.perf_counter()
        if answers.over(sent):
            break
        answer = await line.ask(request)
        came = time.perf_counter()
        if wanted and answer.count(_PLACED) != wanted:
            raise RuntimeError(f"not every ask got a place: {answer[:2000]!r}")
        answers.note(sent, came, wanted or 1)


def _requests(load: Load, caller: int) -> Iterator[tuple[bytes, int]]:
    """Give a caller's requests, and how many places each asks for."""
    if load.kind == "noop":
        request = _http("GET", "/v1/caller", load.token, b"")
        while True:
            yield request, 0
    for number in count():
        name = f"{load.name}-{caller}-{number}"
        if load.kind == "single":
            yield _http("POST", "/v1/reservations", load.token, _body(load, name, number)), 1
        else:
            asks = b",".join(_body(load, f"{name}-{at}", at) for at in range(BATCH))
            body = b'{"reservations":[' + asks + b"]}"
            yield _http("POST", "/v1/reservations/batch", load.token, body), BATCH


def _body(load: Load, name: str, number: int) -> bytes:
    return json.dumps(
        {
            "name": name,
            "pool_id": load.pool_id,
            "devices": [{"class": "gpu.share", "units": 1 + number % 2}],
            "duration": "4h",
            "idempotency_key": name,
        },
        separators=(",", ":"),
    ).encode()


def _http(method: str, path: str, token: str, body: bytes) -> bytes:
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class _Line(asyncio.Protocol):
    """One kept connection, one request at a time."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._missing: int | None = None
        self._answer: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def ask(self, request: bytes) -> "asyncio.Future[bytes]":
        """Send a request; the answer's body comes when it is complete."""
        self._parts, self._missing = [], None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answer

    def close(self) -> None:
        """Hang up."""
        self._answer = None
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        if self._missing is None:
            # Heads are short: they come in one piece.
            head, _, data = data.partition(b"\r\n\r\n")
            status, _, fields = head.partition(b"\r\n")
            if status.split(b" ", 2)[1] not in {b"200", b"201"}:
                self._fail(f"{status!r} {data!r}")
                return
            length = fields.lower().partition(b"content-length:")[2]
            self._missing = int(length.partition(b"\r\n")[0])
        self._parts.append(data)
        self._missing -= len(data)
        if self._missing == 0 and self._answer is not None:
            self._answer.set_result(b"".join(self._parts))

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the server hung up: {exc}")

    def _fail(self, why: str) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(RuntimeError(why))
