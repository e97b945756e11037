# Made from client/aio/asking.py by tools/unasync.py: change that one.
"""How the methods of all rooms ask: for one object, for a list, and for a change of a version."""

from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel

from apportion.client.answers import as_asked
from apportion.client.requests import Document, Query, body_of
from apportion.client.sync.connection import Connection, Repeat
from apportion.client.sync.page import Page
from apportion.errors import ConflictError

V = TypeVar("V", bound=BaseModel)


class Asking:
    """What the methods of a room stand on."""

    _connection: Connection

    def _send(
        self,
        method: str,
        path: str,
        view: type[V],
        body: object = None,
        *,
        query: Query | None = None,
        repeat: Repeat = "always",
    ) -> V:
        answer = self._connection.ask(method, path, query=query, body=body, repeat=repeat)
        return view.model_validate(answer)

    def _list(self, path: str, view: type[V], query: Query, cursor: str | None) -> Page[V]:
        return self._page(path, view, query, cursor)

    def _page(self, path: str, view: type[V], query: Query, cursor: str | None) -> Page[V]:
        answer = self._connection.ask("GET", path, query={**query, "cursor": cursor})
        items = [view.model_validate(each) for each in answer["items"]]
        return Page(items, answer["next_cursor"], partial(self._list, path, view, query))

    def _update(self, method: str, path: str, view: type[V], request: BaseModel | Document) -> V:
        """Change the version of an object that was read.

        Where the first try got no answer, the second finds the next version there. If that one has
        all that was asked for, it is the answer; else somebody changed it, and CONFLICT stands.
        """
        body = body_of(request)
        try:
            return self._send(method, path, view, body)
        except ConflictError as error:
            if error.details.get("uncertain") is not True:
                raise
            there: dict[str, Any] = self._connection.ask("GET", path)
            if not as_asked(there, body):
                raise
            return view.model_validate(there)
