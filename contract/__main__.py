"""Run schemathesis on a server process that holds one object of each kind.

python -m contract [--cases 5000] [--examples 45] [--seed 1]

Every phase runs: the document's examples, boundary values, random good and bad data, and stateful
sequences in which the answers of one operation become the input of the next. Exits 1 for an answer
that is not documented, a status of 500 and above, bad data that is taken, or too few cases.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from apportion.client import Client
from apportion.testing.builders import ask, device, gpu, inventory, pool_of

# Sequences are short of luck: most end at an id that is not there, so there have to be many.
SEQUENCES = 400
# A schema cannot say that a pool must exist, or that a duration has a grammar.
EXCLUDED = "positive_data_acceptance"


def main(arguments: Sequence[str]) -> int:
    """Start the server, fill it, and let schemathesis have it."""
    parser = argparse.ArgumentParser(prog="python -m contract")
    parser.add_argument("--cases", type=int, default=5000, help="fail below so many")
    parser.add_argument("--examples", type=int, default=45, help="random ones an operation")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(arguments)
    seed = f"--seed={args.seed}"
    with tempfile.TemporaryDirectory() as directory, _server(Path(directory)) as url:
        token = (Path(directory) / "root.token").read_text().strip()
        with Client(url, token) as client:
            token_id = _fill(client)
        phases = {"examples,coverage,fuzzing": args.examples, "stateful": SEQUENCES}
        runs = [
            _run(url, token, token_id, f"--phases={phase}", f"--max-examples={most}", seed)
            for phase, most in phases.items()
        ]
    cases = sum(made for _, made in runs)
    print(f"cases: {cases}")
    if cases < args.cases:
        print(f"too few cases: {cases} of at least {args.cases}")
        return 1
    return max(code for code, _ in runs)


@contextmanager
def _server(state: Path) -> Generator[str]:
    """Run `apportion up` for the block, and give its URL."""
    command = [sys.executable, "-m", "apportion", "up", "--no-demo", "--port", "0"]
    clean = {name: v for name, v in os.environ.items() if not name.startswith("APPORTION_")}
    with subprocess.Popen(
        [*command, "--state", str(state)],
        stdout=subprocess.PIPE,
        stderr=(state / "log").open("w"),
        text=True,
        env=clean,
    ) as process:
        try:
            yield _url(process)
        finally:
            process.terminate()


def _url(process: "subprocess.Popen[str]") -> str:
    for line in process.stdout or ():
        if found := re.search(r"answers at (http://\S+)", line):
            return found[1]
    raise RuntimeError("the server did not start")


def _fill(client: Client) -> str:
    """Make one object of each kind; return the id of the token that is used."""
    client.create_tenant({"id": "acme", "name": "Acme"})
    pool = client.create_pool(pool_of("H100", "mig", name="contract"))
    client.join_node(pool.id, inventory("n1", gpu("H100", 0, "3g.40gb@4", "1g.10gb@0")))
    client.offer_pool(pool.id, "acme", {"quota": {"gpu.mig": 4}})
    client.create_reservation(ask(pool.id, device("gpu.mig", profile="3g.40gb"), duration="1h"))
    client.create_token({"name": "other", "role": "viewer"})
    client.create_policy(
        {"name": "nodes", "text": 'forbid(principal in Role::"node", action, resource);'}
    )
    client.create_webhook({"name": "hook", "url": "https://93.184.215.14/hook", "enabled": False})
    return client.get_caller().token_id


def _run(url: str, token: str, token_id: str, *arguments: str) -> tuple[int, int]:
    """Run schemathesis; return its exit status and how many cases it made."""
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json"),
        *("--header", f"Authorization: Bearer {token}"),
        *("--workers", "2"),
        *("--exclude-checks", EXCLUDED),
        *("--request-timeout", "20"),
        *("--generation-database", "none"),
        *arguments,
    ]
    environment = {
        **os.environ,
        "SCHEMATHESIS_HOOKS": "contract.hooks",
        "CONTRACT_TOKEN_ID": token_id,
        "NO_COLOR": "1",
        "COLUMNS": "100",
    }
    process = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    print(process.stdout, flush=True)
    found = re.search(r"([\d,]+) generated", process.stdout)
    return process.returncode, int(found[1].replace(",", "")) if found else 0


sys.exit(main(sys.argv[1:]))
