"""`apportion agent`: what runs on a GPU node, and what it sees there."""

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from apportion.cli import agent_daemon, agent_foreign
from apportion.cli.output import add_output_argument, print_data, table

Document = Mapping[str, Any]

_EXAMPLES = """\
examples:
  apportion agent inventory
  apportion agent inventory -o json > node.json
  apportion agent diag --check diag.nvml
  apportion agent join --server https://apportion.example --token-file n1.token
  apportion agent run
  apportion agent foreign list
  apportion agent foreign destroy MIG-... --yes

exit codes of diag: 0 passed; 1 not passed"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `inventory`, `diag` and `foreign`, and the verbs of the daemon."""
    parser.epilog = _EXAMPLES
    verbs = parser.add_subparsers(
        dest="verb", required=True, metavar="inventory|diag|join|run|foreign"
    )
    inventory = verbs.add_parser(
        "inventory", help="print what there is on this machine", epilog=_EXAMPLES
    )
    _add_looking(inventory)
    add_output_argument(inventory)
    diag = verbs.add_parser("diag", help="check that this machine can take work", epilog=_EXAMPLES)
    diag.add_argument("--check", metavar="NAME", default="diag.nvml", help="(default: diag.nvml)")
    _add_looking(diag)
    add_output_argument(diag)
    agent_daemon.add_verbs(verbs.add_parser, _EXAMPLES)
    agent_foreign.add_verbs(verbs.add_parser, _EXAMPLES)


def _add_looking(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--node", metavar="NAME", help="the node's name (default: the host's)")
    parser.add_argument(
        "--state", type=Path, metavar="DIR", help="the agent's state, for what it remembers"
    )


def run(args: argparse.Namespace) -> int:
    """Look at this machine, or be its agent; 0, or 1 where `diag` finds something wrong."""
    if args.verb in agent_daemon.VERBS:
        return agent_daemon.run(args)
    if args.verb == agent_foreign.VERB:
        return agent_foreign.run(args)
    from apportion.agent.looking import host_name, look

    document = look(args.node or host_name(), args.state)
    if args.verb == "diag":
        return _diag(document, args.check, args.output)
    if args.output != "table":
        print_data(document, args.output)
    else:
        sys.stdout.write("\n".join(_text(document)) + "\n")
    return 0


def _diag(document: Document, check: str, output: str) -> int:
    from apportion.agent.acceptance import run_check

    result = run_check(check, document)
    if output != "table":
        found = {"passed": result.passed, "details": list(result.details)}
        print_data({"check": result.check, **found}, output)
    elif result.passed:
        sys.stdout.write(f"{result.check}: passed, {len(document['gpus'])} GPUs\n")
    else:
        lines = [f"{result.check}: not passed", *(f"  {each}" for each in result.details)]
        sys.stdout.write("\n".join(lines) + "\n")
    return 0 if result.passed else 1


def _text(document: Document) -> Iterator[str]:
    from apportion.agent.inventory import health

    state, why = health(document)
    host, driver = document["host"], document["driver"]
    yield f"{document['node']}: {state}" + ("" if why is None else f", {why}")
    yield f"{host['logical_cpus']} CPUs, {host['memory_mib']} MiB of memory"
    if driver is not None:
        yield f"driver {driver['driver']}, CUDA {driver['cuda']}"
    if document["gpus"]:
        yield ""
        yield table(
            ("gpu", "product", "MiB", "pci", "numa", "mig", "processes", "failed"),
            [_gpu(gpu) for gpu in document["gpus"]],
        )
    gpus = document["gpus"]
    instances = [_instance(gpu, each) for gpu in gpus for each in gpu["mig"]["instances"]]
    if instances:
        yield ""
        yield table(("gpu", "profile", "start", "gi", "ci", "SMs", "MiB", "uuid"), instances)
    differences = [_difference(gpu, each) for gpu in gpus for each in gpu.get("differences", ())]
    if differences:
        yield ""
        yield table(("gpu", "profile", "figure", "driver", "table of boards"), differences)


def _gpu(gpu: Document) -> tuple[object, ...]:
    return (
        gpu["index"],
        gpu["product"],
        gpu["memory_mib"],
        gpu["pci_address"],
        _or_dash(gpu.get("numa_node")),
        _mode(gpu["mig"]),
        len(gpu.get("processes", ())),
        gpu["failed"] or "-",
    )


def _mode(mig: Document) -> str:
    if mig["current"] == mig["pending"]:
        return "on" if mig["current"] else "off"
    return "off, on at the reset" if mig["pending"] else "on, off at the reset"


def _instance(gpu: Document, row: Document) -> tuple[object, ...]:
    return (
        gpu["index"],
        row["profile"],
        row["start"],
        row["gi_id"],
        _or_dash(row["ci_id"]),
        _or_dash(row.get("sm_count")),
        _or_dash(row.get("memory_mib")),
        _or_dash(row["uuid"]),
    )


def _difference(gpu: Document, row: Document) -> tuple[object, ...]:
    return (gpu["index"], row["profile"] or "-", row["figure"], row["driver"], row["package"])


def _or_dash(value: object) -> object:
    return "-" if value is None else value
