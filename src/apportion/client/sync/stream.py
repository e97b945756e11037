# Made from client/aio/stream.py by tools/unasync.py: change that one.
"""A stream of events that outlives its connections."""

from collections.abc import Generator
from contextlib import closing

from apportion.client.requests import Query
from apportion.client.retries import ATTEMPTS, STREAM_ATTEMPTS
from apportion.client.sync.connection import Connection
from apportion.errors import UnavailableError
from apportion.events.schemas import EventView


def follow(
    connection: Connection, path: str, query: Query, last_event_id: str | None
) -> Generator[EventView]:
    """Give events; a connection that breaks or ends is opened again after the last one.

    The server tells where it stands as soon as it is reached, in an id without data, so that
    nothing is missed where the connection breaks before the first event. Raises UnavailableError
    where no server answers several times in a row, and whatever else the server refuses with.
    """
    attempts, failures, pause = ATTEMPTS, 0, None
    while True:
        try:
            with closing(connection.listen(path, query, last_event_id)) as news:
                for told in news:
                    attempts, failures = STREAM_ATTEMPTS, 0
                    last_event_id = told.id or last_event_id
                    pause = pause if told.retry is None else told.retry / 1000
                    if told.data:
                        yield EventView.model_validate_json(told.data)
        except UnavailableError:
            if failures + 1 == attempts:
                raise
        failures = min(failures + 1, attempts - 1)
        connection.sleep(connection.pauses.after(failures, pause))
