"""How a command reaches the server: flags, then the environment; and the words of its refusals."""

import argparse
import os
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, cast

from apportion.cli.finding import is_id, the_one
from apportion.cli.output import add_output_argument
from apportion.errors import ApportionError, ForbiddenError, InvalidInputError, NotFoundError

if TYPE_CHECKING:  # loading the client takes half a second, which --help must not
    from apportion.client import Client
    from apportion.client.sync.connection import Connection
    from apportion.pools.schemas import PoolView


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Add how to print, and where the server is."""
    add_output_argument(parser)
    add_address_arguments(parser)


def add_address_arguments(parser: argparse.ArgumentParser) -> None:
    """Add where the server is, and for whom it is asked."""
    group = parser.add_argument_group("the server")
    group.add_argument(
        "--url",
        metavar="URL",
        help="its address (default: APPORTION_URL, then http://127.0.0.1:7070)",
    )
    group.add_argument(
        "--token-file",
        metavar="FILE",
        help="holds the token (default: APPORTION_TOKEN, then APPORTION_TOKEN_FILE)",
    )
    group.add_argument(
        "--tenant",
        metavar="ID",
        help="act for this tenant, which is below the token's own (default: APPORTION_TENANT)",
    )


def connect(args: argparse.Namespace) -> "Client":
    """Return a client for the server that the flags, or else the environment, name.

    Raises InvalidInputError for arguments that no request can carry, UnauthenticatedError where
    there is no token.
    """
    from apportion.client import Client

    with _naming_settings(args):
        return Client.from_environment(_environment(args))


@contextmanager
def connect_plainly(args: argparse.Namespace) -> "Generator[Connection]":
    """Give the bare connection, for requests that are known only when the server is asked.

    Raises what `connect` raises.
    """
    from apportion.client.environment import server_tenant, server_token, server_url
    from apportion.client.sync.client import TIMEOUT_SECONDS
    from apportion.client.sync.connection import Connection

    with _naming_settings(args):
        environment = _environment(args)
        connection = Connection(
            server_url(environment),
            server_token(environment),
            tenant=server_tenant(environment),
            timeout_seconds=TIMEOUT_SECONDS,
            transport=None,
        )
    try:
        yield connection
    finally:
        connection.close()


def _environment(args: argparse.Namespace) -> Mapping[str, str]:
    """Return the environment with the flags over it."""
    _check_text(args)
    environment = dict(os.environ)
    if args.url is not None:
        environment["APPORTION_URL"] = args.url
    if args.token_file is not None:
        environment.pop("APPORTION_TOKEN", None)
        environment["APPORTION_TOKEN_FILE"] = args.token_file
    if args.tenant is not None:
        environment["APPORTION_TENANT"] = args.tenant
    return environment


def _naming_settings(args: argparse.Namespace) -> AbstractContextManager[None]:
    """Name in refusals the flag, or else the variable, that a setting came from."""
    token = {} if args.token_file is None else {"APPORTION_TOKEN_FILE": "--token-file"}
    return naming(
        {
            "url": "APPORTION_URL" if args.url is None else "--url",
            "tenant": "APPORTION_TENANT" if args.tenant is None else "--tenant",
            **token,
        }
    )


def find_pool(client: "Client", text: str, *, field: str) -> "PoolView":
    """Return the pool of that id or name; of one's own and one that is offered, one's own.

    Raises NotFoundError when there is none, InvalidInputError when several owners offer one.
    """
    with naming({"pool_id": field, "name": field}):
        if is_id(text):
            return client.get_pool(text)
        found = client.list_pools(name=text).items
        found = found or client.list_pools(name=text, archived=True).items
    own = [pool for pool in found if pool.owned]
    return the_one(own or found, text, field=field, what="pool")


def find_own_pool(client: "Client", text: str, *, field: str) -> "PoolView":
    """Return the pool of that id or name where it is the caller's own.

    Raises ForbiddenError for one that is offered: to all but its owner the server says that there
    is none to manage, which nobody understands who has just seen it in a list. Raises what
    `find_pool` raises.
    """
    pool = find_pool(client, text, field=field)
    if not pool.owned:
        raise ForbiddenError(
            f"is {pool.owner_tenant_id}'s, who offers it; only its owner does that",
            field=field,
            given=text,
            hint="`apportion pool list --owned` shows those of one's own",
        )
    return pool


class PoolNames:
    """Names of pools by id: one request for most tenants, one more for each pool beyond."""

    def __init__(self, client: "Client") -> None:
        self._client = client
        self._names: dict[str, str] | None = None

    def name(self, pool_id: str | None) -> str | None:
        """Return the pool's name; its id where it has none for this caller."""
        if pool_id is None:
            return None
        if self._names is None:
            self._names = {pool.id: pool.name for pool in self._client.list_pools(limit=1000).items}
        if pool_id not in self._names:
            self._names[pool_id] = self._ask(pool_id)
        return self._names[pool_id]

    def _ask(self, pool_id: str) -> str:
        try:
            return self._client.get_pool(pool_id).name
        except NotFoundError:
            return pool_id


@contextmanager
def naming(flags: Mapping[str, str]) -> Generator[None]:
    """Name the flag in refusals of what it set: ``--for`` where the API says ``duration``."""
    try:
        yield
    except ApportionError as error:
        error.field = _flag(error.field, flags)
        raise


def _flag(field: str | None, flags: Mapping[str, str]) -> str | None:
    if field is None or field in flags:
        return field and flags[field]
    for path in sorted(flags, key=len, reverse=True):
        if field.startswith((f"{path}.", f"{path}[")):
            return f"{flags[path]} ({field})"
    return field


def _check_text(args: argparse.Namespace) -> None:
    """Refuse bytes of the command line that are not text in this locale: JSON cannot carry them."""
    for name, value in vars(args).items():
        values = cast("list[object]", value) if isinstance(value, list) else [value]
        for each in values:
            if isinstance(each, str) and not _is_text(each):
                raise InvalidInputError(
                    "is not text in UTF-8",
                    field=f"--{name.replace('_', '-')}",
                    given=ascii(each),
                )


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
