"""Complete durable reservations a second through HTTP, beside bare INSERTs in the same database.

A complete reservation is one that a caller asked for over HTTP and was told of: its ask, its
booking, its quota, its event, all on disk. The bare INSERT writes one row a transaction into a
frozen copy of the bookings table: its columns and its exclusion constraint as they were when this
was written, no foreign key, check or other index, so that later changes of the schema do not move
what is compared with. It comes from pgbench, which is in C, on eight connections.

Callers, servers and PostgreSQL are processes of one machine, and share its cores. Everything is
measured in turns, and figures are medians of the rounds.
"""

import asyncio
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from psycopg import Connection

from apportion.authority.service import ROOT, Caller
from apportion.nodes.schemas import GpuReport, HostReport, Inventory
from apportion.nodes.service import import_inventories
from apportion.pools.schemas import PoolCreate
from apportion.pools.service import create_pool
from apportion.server.system import KEY_FILE, TOKEN_FILE, System, running
from apportion.store import embedded
from bench.http import Answers, Kind, Load
from bench.http import run as put_on
from bench.replay.report import QUICK, show

ROUNDS: Final = 1 if QUICK else 5
SECONDS: Final = 1 if QUICK else 4
LEAD: Final = 0.2 if QUICK else 2
SMALL: Final = 1_000
LARGE: Final = 4_000 if QUICK else 100_000
"""GPUs of the two pools: all is asked of the large one, but for what is compared with it."""
SERVERS: Final = 3
GPUS_A_NODE: Final = 8
CONNECTIONS: Final = 8
CALLER: Final = Caller(ROOT, "bench")
_IMPORTED_AT_ONCE: Final = 500
_ANSWERS_AT: Final = re.compile(r"answers at http://127\.0\.0\.1:(\d+)")

_BARE: Final = """
    CREATE EXTENSION IF NOT EXISTS btree_gist;
    CREATE TABLE bare (
        id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
        tenant_id text NOT NULL,
        pool_id text NOT NULL,
        gpu_id integer NOT NULL,
        reservation_id text,
        partition_id text,
        piece integer NOT NULL,
        device integer NOT NULL,
        class text NOT NULL,
        atom_id bigint,
        generation integer NOT NULL,
        units int4multirange NOT NULL,
        during tstzrange NOT NULL,
        planned tstzrange NOT NULL,
        share_num integer NOT NULL,
        share_den integer NOT NULL,
        voided_at timestamptz,
        changed_xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
        EXCLUDE USING gist (gpu_id WITH =, units WITH &&, during WITH &&) WHERE (voided_at IS NULL)
    );
    CREATE SEQUENCE bare_number;
"""
_INSERT: Final = """
    INSERT INTO bare (
        tenant_id, pool_id, gpu_id, reservation_id, piece, device, class, generation, units, during,
        planned, share_num, share_den
    )
    SELECT
        'root', 'pool_01k5d0v6f8q0e6m7x9w2y4z1ab', number % 100000,
        'res_' || lpad(number::text, 26, '0'), 0, 0, 'gpu.share', 1,
        int4multirange(int4range(slot, slot + 1)),
        tstzrange('2026-01-01T00:00Z', '2026-01-01T04:00Z'),
        tstzrange('2026-01-01T00:00Z', '2026-01-01T04:00Z'), 1, 100
    FROM (
        SELECT number, (number / 100000)::int AS slot FROM nextval('bare_number') AS number
    ) AS next;
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that is measured; its name is part of its figures' keys."""

    name: str
    kind: Kind
    callers: int
    servers: int = 1
    small: bool = False


CASES: Final = (
    Case("noop64", "noop", 64),
    *(
        Case(f"{kind}{callers}{suffix}", kind, callers, servers)
        for servers, suffix in ((1, ""), (SERVERS, f".servers{SERVERS}"))
        for kind in ("single", "batch")
        for callers in (1, 8, 64)
    ),
    Case(f"single64.gpus{SMALL}", "single", 64, small=True),
)
WARM_UP: Final = (
    Case("warm", "batch", 8 * SERVERS, SERVERS),
    Case("warm.small", "single", SERVERS, SERVERS, small=True),
)
"""By these each server has met both pools, which it then has a picture of."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The servers, the database and the pools that all cases use."""

    dsn: str
    ports: Sequence[int]
    token: str
    small: str
    large: str


def run() -> dict[str, float]:
    """Measure in interleaved rounds and print a table."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        stage = _stage(Path(directory), stack)
        callers = stack.enter_context(ProcessPoolExecutor(1, mp_context=get_context("spawn")))
        for case in WARM_UP:
            callers.submit(put_on, _load(case, stage, 0)).result()
        measured: dict[Case, list[Answers]] = {case: [] for case in CASES}
        bare: list[float] = []
        for turn in range(1, ROUNDS + 1):
            for case in CASES:
                measured[case].append(callers.submit(put_on, _load(case, stage, turn)).result())
            bare.append(_insert(stage.dsn, Path(directory)))
        _check(stage.dsn, measured)
    figures = _figures(measured, bare)
    _show(figures)
    return figures


def _load(case: Case, stage: Stage, turn: int) -> Load:
    return Load(
        kind=case.kind,
        ports=tuple(stage.ports[: case.servers]),
        token=stage.token,
        pool_id=stage.small if case.small else stage.large,
        name=f"{case.name}-{turn}",
        callers=case.callers,
        lead=LEAD,
        seconds=SECONDS,
    )


def _figures(measured: dict[Case, list[Answers]], bare: list[float]) -> dict[str, float]:
    figures = {"durable.bare_insert.per_second": statistics.median(bare)}
    for case, rounds in measured.items():
        key = f"durable.{case.name}"
        figures[f"{key}.per_second"] = statistics.median(each.per_second for each in rounds)
        for name, percent in (("p50_ms", 50), ("p99_ms", 99)):
            figures[f"{key}.{name}"] = statistics.median(
                1000 * _percentile(each.latencies, percent) for each in rounds
            )
    for name in ("batch64", f"batch64.servers{SERVERS}"):
        figures[f"durable.{name}.ratio_to_bare_insert"] = _ratio(
            [each.per_second for each in measured[_case(name)]], bare
        )
    singles, noops = (measured[_case(name)] for name in ("single64", "noop64"))
    figures["durable.single64.ratio_to_noop_route"] = _ratio(
        [each.per_second for each in singles], [each.per_second for each in noops]
    )
    large, small = "durable.single64", f"durable.single64.gpus{SMALL}"
    figures[f"{large}.p99_ratio_{LARGE}"] = figures[f"{large}.p99_ms"] / figures[f"{small}.p99_ms"]
    return figures


def _case(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


def _percentile(values: Sequence[float], percent: int) -> float:
    """Return the least value that so many percent of all do not exceed."""
    return sorted(values)[-(-len(values) * percent // 100) - 1]


def _ratio(rates: Sequence[float], to: Sequence[float]) -> float:
    """Return the median of the rounds' ratios: a busy machine slows both of one round alike."""
    return statistics.median(one / other for one, other in zip(rates, to, strict=True))


def _show(figures: dict[str, float]) -> None:
    rows = [
        (
            case.name,
            *(
                figures[f"durable.{case.name}.{each}"]
                for each in ("per_second", "p50_ms", "p99_ms")
            ),
        )
        for case in CASES
    ]
    rows.append(("bare INSERT, 8 connections", figures["durable.bare_insert.per_second"], 0, 0))
    show("callers, through HTTP", ("what", "a second", "p50 ms", "p99 ms"), rows)
    ratios = [(key, value) for key, value in figures.items() if "ratio" in key]
    show("ratios", ("figure", "value"), ratios)


def _check(dsn: str, measured: dict[Case, list[Answers]]) -> None:
    """See in the database that what was told is there."""
    told = sum(
        each.told for case, rounds in measured.items() for each in rounds if case.kind != "noop"
    )
    with Connection.connect(dsn) as connection:
        query = (
            "SELECT count(*) FROM reservations JOIN bookings ON reservation_id = reservations.id"
            " WHERE state = 'active'"
        )
        row = connection.execute(query).fetchone()
    if row is None or row[0] < told:
        raise RuntimeError(f"{told} reservations were told of, and there are {row}")


def _insert(dsn: str, directory: Path) -> float:
    """Return how many rows a second eight connections insert, one a transaction."""
    script = directory / "insert.sql"
    script.write_text(" ".join(_INSERT.split()))
    pgbench = str(embedded.find_binaries() / "pgbench")
    what = ["--no-vacuum", "--protocol=prepared", f"--file={script}"]
    how = [f"--client={CONNECTIONS}", "--jobs=1", f"--time={max(1, round(SECONDS))}"]
    done = subprocess.run([pgbench, *what, *how, dsn], check=True, capture_output=True, text=True)
    told = re.search(r"tps = ([\d.]+)", done.stdout)
    if told is None:
        raise RuntimeError(f"pgbench does not say how fast it was:\n{done.stdout}")
    return float(told[1])


def _stage(directory: Path, stack: ExitStack) -> Stage:
    database = stack.enter_context(embedded.start(directory / "postgres"))
    state = directory / "first"
    small, large = asyncio.run(_fleets(state, database.dsn))
    with Connection.connect(database.dsn) as connection:
        connection.execute(_BARE)
    ports = [
        stack.enter_context(_server(directory / f"server{number}", database.dsn, state / KEY_FILE))
        for number in range(SERVERS)
    ]
    token = (state / TOKEN_FILE).read_text("utf-8").strip()
    return Stage(database.dsn, ports, token, small, large)


@contextmanager
def _server(state: Path, dsn: str, key_file: Path) -> Generator[int]:
    """Serve as `apportion up` does, in a process of its own; gives its port."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("APPORTION_")}
    environment |= {"APPORTION_DATABASE_URL": dsn, "APPORTION_KEY_FILE": str(key_file)}
    command = [sys.executable, "-m", "apportion", "up", "--no-demo", "--port", "0"]
    with subprocess.Popen(
        [*command, "--state", str(state)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            told = next(filter(None, map(_ANSWERS_AT.search, process.stdout)))
            yield int(told[1])
        finally:
            process.terminate()


async def _fleets(state: Path, dsn: str) -> tuple[str, str]:
    async with running(state, database_url=dsn) as system:
        return await _fleet(system, SMALL), await _fleet(system, LARGE)


async def _fleet(system: System, gpus: int) -> str:
    """Make a pool of freely shared GPUs: each has room for 48 holders."""
    wanted = {
        "name": f"gpus{gpus}",
        "gpu_model": "T4",
        "sharing": "timeslice",
        "policy": {"shares": 100},
        "owner_quota": {"gpu.share": "unlimited"},
    }
    pool = await create_pool(system.runtime, CALLER, PoolCreate.model_validate(wanted))
    documents = [_inventory(gpus, node) for node in range(gpus // GPUS_A_NODE)]
    for at in range(0, len(documents), _IMPORTED_AT_ONCE):
        chunk = documents[at : at + _IMPORTED_AT_ONCE]
        await import_inventories(system.runtime, CALLER, pool.id, chunk)
    return pool.id


def _inventory(gpus: int, node: int) -> Inventory:
    return Inventory(
        node=f"n{node}",
        host=HostReport(logical_cpus=64, memory_mib=262144),
        gpus=[
            GpuReport(index=at, uuid=f"GPU-{gpus}-{node}-{at}", product="Tesla T4")
            for at in range(GPUS_A_NODE)
        ],
    )
