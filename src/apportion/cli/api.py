"""`apportion api`: any operation of the server's OpenAPI document, by its id."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from apportion.cli.connection import add_server_arguments, connect_plainly
from apportion.cli.documents import parse_json, read_json
from apportion.cli.operations import Operation, find_operation, operations_of
from apportion.cli.output import print_data, table
from apportion.errors import InvalidInputError

if TYPE_CHECKING:
    from apportion.client.requests import Query

_EXAMPLES: Final = """\
The answer is printed as JSON; what the server refuses is an error and exit code 1.

examples:
  apportion api --list
  apportion api get_caller
  apportion api list_reservations -p state=pending -p state=active -p limit=10
  apportion api offer_pool -p pool_id=pool_01k... -p tenant_id=acme -f offer.json
  echo '{"name": "fra1", "region": "eu-central"}' | apportion api create_site -f -"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add which operation, and what it is given."""
    parser.epilog = _EXAMPLES
    parser.add_argument("operation", metavar="OPERATION", nargs="?", help="its id: create_pool")
    parser.add_argument("--list", action="store_true", help="list all operations and their rights")
    parser.add_argument(
        "-f", "--file", metavar="FILE", help="the body: a JSON file, - for standard input, or JSON"
    )
    parser.add_argument(
        "-p",
        "--parameter",
        dest="parameters",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a part of the path or of the query (again for more, and for lists)",
    )
    add_server_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """List operations or call one; 0, or the server's refusal."""
    if (args.operation is None) != args.list:
        raise InvalidInputError(
            "names what is called, or --list lists it",
            field="OPERATION",
            given=args.operation,
            allowed="an id, or --list",
        )
    with connect_plainly(args) as connection:
        known = operations_of(connection.ask("GET", "/openapi.json"))
        if args.list:
            return _list(args, known)
        operation = find_operation(known, args.operation)
        parameters = _parameters(operation, args.parameters)
        body = _body(operation, args.file)
        answer = connection.ask(
            operation.method,
            operation.path_with(parameters),
            query=_query(operation, parameters),
            body=body,
            # What has no key may have been done by the try that got no answer.
            repeat="always" if operation.is_repeatable(body) else "unsent",
        )
    print_data(answer, args.output)
    return 0


def _list(args: argparse.Namespace, known: Sequence[Operation]) -> int:
    if args.output == "table":
        rows = [(each.id, each.summary, each.right) for each in known]
        sys.stdout.write(table(("operation", "does", "right"), rows) + "\n")
    else:
        print_data({"items": [each.data() for each in known]}, args.output)
    return 0


def _parameters(operation: Operation, given: Sequence[str]) -> Mapping[str, list[str]]:
    """Read ``NAME=VALUE`` for each, and refuse what the operation does not have or lacks."""
    found: dict[str, list[str]] = {}
    known = {each.name: each for each in operation.parameters}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or name not in known:
            raise InvalidInputError(
                f"{operation.id} has no such parameter" if equals else "is no parameter",
                field="--parameter",
                given=text[:60],
                allowed=", ".join(f"{each}=…" for each in known) or "none",
            )
        found.setdefault(name, []).append(value)
        if len(found[name]) > 1 and not known[name].is_list:
            raise InvalidInputError(
                f"{name} is given twice", field="--parameter", given=text[:60], allowed="once"
            )
    for each in operation.parameters:
        if each.required and each.name not in found:
            raise InvalidInputError(
                f"{operation.id} needs {each.name}",
                field="--parameter",
                allowed=f"{each.name}=…",
            )
    return found


def _query(operation: Operation, parameters: Mapping[str, list[str]]) -> "Query":
    return {
        each.name: parameters[each.name]
        for each in operation.parameters
        if each.place == "query" and each.name in parameters
    }


def _body(operation: Operation, source: str | None) -> Any:
    if source is None:
        if operation.needs_body:
            raise InvalidInputError(
                f"{operation.id} needs a body", field="--file", allowed="a JSON file, -, or JSON"
            )
        return None
    if not operation.has_body:
        raise InvalidInputError(f"{operation.id} takes no body", field="--file", given=source[:60])
    if source.lstrip().startswith(("{", "[")):
        return parse_json(source, field="--file")
    return read_json(source, field="--file")
