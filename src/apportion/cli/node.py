"""`apportion node`: machines, as their inventory documents report them."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from apportion.cli import node_join
from apportion.cli.connection import (
    PoolNames,
    add_server_arguments,
    connect,
    find_own_pool,
    find_pool,
    naming,
)
from apportion.cli.documents import read_json
from apportion.cli.listing import add_list_arguments, data_of, print_list
from apportion.cli.node_text import said_lines
from apportion.cli.output import print_data, table
from apportion.cli.showing import fact_lines, next_lines, print_view
from apportion.cli.times import both_zones, short_time
from apportion.errors import ApportionError, InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from apportion.client import Client
    from apportion.nodes.schemas import NodeView
    from apportion.pools.schemas import PoolView

HEALTHS: Final = ("healthy", "degraded", "no_capacity")

_EMPTY = "No such nodes. Import one: apportion node import POOL FILE"
_LONG = 10  # documents from which on progress is shown
_EXAMPLES = """\
A document is the full picture of one node; to import it again brings the node up to date:
  {"node": "n1", "host": {"logical_cpus": 64, "memory_mib": 262144},
   "gpus": [{"index": 0, "uuid": "GPU-...", "product": "NVIDIA H100 80GB HBM3"}]}

examples:
  apportion node import notebooks n1.json
  apportion node import notebooks all-nodes.json     a list of documents
  collect-inventory | apportion node import notebooks -
  apportion node list --health degraded
  apportion node show n1
  apportion node set n1 --mig-layout dynamic
  apportion node set n1 --mig-layout-from node
  apportion node join-token create notebooks --out n2.token
  apportion node join-token list --state open
  apportion node join-token revoke n2 --yes
  apportion node revoke n1 --yes"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `import`, `list`, `show`, `set`, `join-token` and `revoke`."""
    parser.epilog = _EXAMPLES
    verbs = parser.add_subparsers(
        dest="verb", required=True, metavar="import|list|show|set|join-token|revoke"
    )
    importing = verbs.add_parser(
        "import", help="take in what nodes report; new ones join the pool", epilog=_EXAMPLES
    )
    importing.add_argument("pool", metavar="POOL", help="the pool's name or id")
    importing.add_argument(
        "file", metavar="FILE", help="one JSON document or a list of them; - for standard input"
    )
    add_server_arguments(importing)
    listing = verbs.add_parser("list", help="list nodes", epilog=_EXAMPLES)
    listing.add_argument("--pool", metavar="POOL", help="only of this pool, by name or id")
    listing.add_argument("--health", choices=HEALTHS, help="only those of this health")
    listing.add_argument("--stale", action="store_true", help="only those that nobody hears of")
    add_list_arguments(listing)
    add_server_arguments(listing)
    show = verbs.add_parser("show", help="show a node and its GPUs", epilog=_EXAMPLES)
    show.add_argument("node", metavar="NODE", help="its name or id")
    show.add_argument("--pool", metavar="POOL", help="where several pools have such a name")
    add_server_arguments(show)
    setting = verbs.add_parser(
        "set", help="say which MIG layout it has, and whence", epilog=_EXAMPLES
    )
    setting.add_argument("node", metavar="NODE", help="its name or id")
    setting.add_argument("--pool", metavar="POOL", help="where several pools have such a name")
    setting.add_argument(
        "--mig-layout-from",
        choices=("pool", "node"),
        help="its pool's policy, or the node's own configuration",
    )
    pins = setting.add_mutually_exclusive_group()
    pins.add_argument(
        "--mig-layout", metavar="LAYOUT", help="pin it to a layout, whatever its pool asks for"
    )
    pins.add_argument("--unpin", action="store_true", help="let it follow its pool again")
    add_server_arguments(setting)
    node_join.add_verbs(verbs.add_parser, _EXAMPLES)


def run(args: argparse.Namespace) -> int:
    """Do what the verb says; 0, or the server's refusal."""
    with connect(args) as client:
        if args.verb == "import":
            return _import(args, client)
        if args.verb == "join-token":
            return node_join.run_join_token(args, client)
        pool = None if args.pool is None else find_pool(client, args.pool, field="--pool")
        if args.verb == "show":
            return _show(args, client, pool)
        if args.verb == "set":
            return _set(args, client, pool)
        if args.verb == "revoke":
            return node_join.revoke(args, client, _find(client, args.node, pool))
        pools = PoolNames(client)
        fetch = partial(
            client.list_nodes,
            pool_id=None if pool is None else pool.id,
            health=args.health,
            stale=True if args.stale else None,
        )

        def row(node: "NodeView") -> Sequence[object]:
            host = {each.resource: each.capacity for each in node.resources}
            return (
                node.name,
                pools.name(node.pool_id),
                node.health if node.stale_since is None else "stale",
                node.gpus,
                host.get("vcpu"),
                host.get("memoryGiB"),
                short_time(node.observed_at or node.inventory_at),
                node.id,
            )

        headers = ("node", "pool", "health", "gpus", "vcpu", "memory GiB", "reported", "id")
        return print_list(args, fetch, headers, row, empty=_EMPTY)


def _import(args: argparse.Namespace, client: "Client") -> int:
    documents = _documents(args.file)
    pool = find_own_pool(client, args.pool, field="POOL")
    nodes: list[NodeView] = []
    for at, document in enumerate(documents):
        place = f"[{at}]" if len(documents) > 1 else ""
        nodes.append(_import_one(client, pool, document, place))
        _show_progress(len(nodes), len(documents))
    if args.output != "table":
        print_data({"items": [data_of(node) for node in nodes]}, args.output)
        return 0
    gpus = sum(node.gpus for node in nodes)
    lines = [f"{len(nodes)} nodes with {gpus} GPUs are in {pool.name}"]
    ill = [node for node in nodes if node.health != "healthy"]
    lines += [f"  {node.name} is {node.health}: {node.health_reason}" for node in ill]
    lines += ["", "Next:", f"  apportion atom list --pool {pool.name} --bookable"]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _documents(source: str) -> list[Mapping[str, Any]]:
    found = read_json(source, field="FILE")
    documents = cast("list[object]", found) if isinstance(found, list) else [found]
    if not documents:
        raise InvalidInputError("holds no document", field="FILE", given=source)
    for at, document in enumerate(documents):
        if not isinstance(document, dict):
            raise InvalidInputError(
                "is no JSON object",
                field=f"FILE[{at}]" if isinstance(found, list) else "FILE",
                given=type(document).__name__,
                allowed="an inventory document, or a list of them",
            )
    return cast("list[Mapping[str, Any]]", documents)


def _import_one(
    client: "Client", pool: "PoolView", document: Mapping[str, Any], place: str
) -> "NodeView":
    """Import one document; a refusal says which one, and that those before it are in."""
    try:
        return client.join_node(pool.id, document)
    except ApportionError as error:
        error.field = f"FILE{place}" + ("" if error.field is None else f".{error.field}")
        if place not in {"", "[0]"}:
            error.hint = f"{error.hint or ''} Those before it are imported.".strip()
        raise


def _show_progress(done: int, total: int) -> None:
    """Rewrite one line on a terminal; say each tenth elsewhere."""
    if total < _LONG:
        return
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{done:,} of {total:,} nodes" + ("\n" if done == total else ""))
    elif done * 10 // total > (done - 1) * 10 // total:
        sys.stderr.write(f"{done:,} of {total:,} nodes\n")
    sys.stderr.flush()


def _show(args: argparse.Namespace, client: "Client", pool: "PoolView | None") -> int:
    node = _find(client, args.node, pool)
    gpus = list(client.list_gpus(pool_id=node.pool_id, node=node.name, limit=1000).all())
    gpus.sort(key=lambda gpu: gpu.index)
    if args.output != "table":
        print_data({**data_of(node), "gpu_list": [data_of(gpu) for gpu in gpus]}, args.output)
        return 0
    facts = {
        "id": node.id,
        "pool": PoolNames(client).name(node.pool_id),
        "health": " ".join(filter(None, (node.health, node.health_reason))),
        "target": node.target,
        "controller": node.controller,
        "MIG layout": _layout_text(node),
        "reported": both_zones(node.observed_at or node.inventory_at),
        "takes work": None if node.reason is None else f"no: {node.reason['message']}",
        "stale since": None if node.stale_since is None else both_zones(node.stale_since),
        "accepted": None if node.accepted_at is None else both_zones(node.accepted_at),
        "key": _key_text(node),
    }
    lines = [*fact_lines(node.name, facts), "", *said_lines(node)]
    host = [(each.resource, each.total, each.ratio, each.capacity) for each in node.resources]
    if host:
        lines += [table(("host", "total", "overcommit", "bookable"), host), ""]
    rows = [
        (gpu.index, gpu.product, gpu.split, gpu.unbookable_reason or "yes", gpu.id) for gpu in gpus
    ]
    lines.append(table(("gpu", "product", "split", "bookable", "id"), rows) if rows else "no GPUs")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _layout_text(node: "NodeView") -> str | None:
    """Say what is particular about a node's MIG layout."""
    if node.mig_layout_from == "node":
        return "its own" if node.own_layout is None else f"its own: {node.own_layout}"
    return None if node.pinned_layout is None else f"pinned to {node.pinned_layout}"


def _key_text(node: "NodeView") -> str | None:
    """Say since when a node has a key of its own, and by whose word, or that it is revoked."""
    if node.enrolled_at is None:
        return None
    if node.revoked_at is not None:
        return f"revoked {both_zones(node.revoked_at)}"
    return f"since {both_zones(node.enrolled_at)}, by {node.attestor}"


def _set(args: argparse.Namespace, client: "Client", pool: "PoolView | None") -> int:
    update: dict[str, Any] = {}
    if args.mig_layout_from is not None:
        update["mig_layout_from"] = args.mig_layout_from
    if args.unpin or args.mig_layout is not None:
        update["mig_layout"] = "pool" if args.unpin else args.mig_layout
    if not update:
        allowed = "--mig-layout, --unpin or --mig-layout-from"
        raise InvalidInputError("say what to set", field="NODE", given=args.node, allowed=allowed)
    node = _find(client, args.node, pool)
    with naming({"mig_layout": "--mig-layout", "mig_layout_from": "--mig-layout-from"}):
        after = client.update_node(node.id, update)
    source = "its pool" if after.mig_layout_from == "pool" else "itself"
    words = f"{after.name} takes its MIG layout from {source}"
    if after.pinned_layout is not None:
        words = f"{after.name} is pinned to {after.pinned_layout}"
    pool_name = PoolNames(client).name(after.pool_id)
    return print_view(args, after, [words, *next_lines(f"apportion layout status {pool_name}")])


def _find(client: "Client", text: str, pool: "PoolView | None") -> "NodeView":
    with naming({"node_id": "NODE", "name": "NODE"}):
        if text.startswith("node_"):  # no name has an underscore
            return client.get_node(text)
        pool_id = None if pool is None else pool.id
        found = client.list_nodes(name=text, pool_id=pool_id, limit=2).items
    if not found:
        raise NotFoundError(
            "no such node", field="NODE", given=text, hint="`apportion node list` shows them"
        )
    if len(found) > 1:
        raise InvalidInputError(
            "several nodes have this name",
            field="NODE",
            given=text,
            allowed=f"one of their ids ({', '.join(node.id for node in found)}, …), or --pool",
        )
    return found[0]
