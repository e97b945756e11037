"""The log: one line an event on stderr, JSON for machines, with the request id if there is one."""

import logging
import os
import sys
from typing import Any, Final

import structlog

from apportion.server.settings import LogFormat, LogLevel

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def configure_logging(level: LogLevel = "info", form: LogFormat = "auto") -> None:
    """Set up the log of this process; ``auto`` is JSON unless stderr is a terminal.

    Colours are for terminals alone, and not where NO_COLOR is set. What uvicorn, psycopg and other
    libraries log goes the same way.
    """
    terminal = sys.stderr.isatty()
    console = form == "console" or (form == "auto" and terminal)
    colours = terminal and not os.environ.get("NO_COLOR")
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    last: list[Any] = (
        [structlog.dev.ConsoleRenderer(colors=colours)]
        if console
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    # It logs every request with its URL, and a webhook's may hold a secret.
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(_LEVELS[level])
