"""Log records with ids as fields, and a formatter that writes them as JSON.

All loggers are children of `statebed`. No handler is installed, as is usual for libraries. Each record has the ids it
is about as attributes, as far as they are known: `job`, `run`, `epoch`, `operator`, `subtask`, `sink`.

    handler = logging.StreamHandler()
    handler.setFormatter(statebed.logs.JsonFormatter())
    logging.getLogger("statebed").addHandler(handler)
"""

import datetime as dt
import json
import logging
from collections.abc import Mapping, MutableMapping
from typing import Any

FIELDS = ("job", "run", "epoch", "operator", "subtask", "sink")
"""Names of the ids that a log record may have."""


class IdLogger(logging.LoggerAdapter[logging.Logger]):
    """Logger that adds its ids to every record; `extra` adds the ids of a single record."""

    def __init__(self, logger: logging.Logger, **ids: str | int) -> None:
        super().__init__(logger, ids)

    def about(self, **ids: str | int) -> "IdLogger":
        """Return this logger with additional ids."""
        return IdLogger(self.logger, **{**(self.extra or {}), **ids})  # type: ignore[arg-type]  # ids are all it has

    def process(self, msg: object, kwargs: MutableMapping[str, Any]) -> tuple[object, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


def id_logger(name: str, **ids: str | int) -> IdLogger:
    """Return the logger called `name`, which adds `ids` to every record."""
    return IdLogger(logging.getLogger(name), **ids)


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON: time, level, logger, message and ids.

    A record with an exception also has its type, code, message, fix and traceback.
    """

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {name: value for name in FIELDS if (value := getattr(record, name, None)) is not None}
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            fields["error"] = _error(error)
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False, default=str)


def _error(error: BaseException) -> Mapping[str, str]:
    parts = {name: str(getattr(error, name, "") or "") for name in ("code", "what", "where", "fix")}
    return {"type": type(error).__name__, **{name: text for name, text in parts.items() if text}}
