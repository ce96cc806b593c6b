"""Keys and values of global keyed tables as JSON."""

import base64
import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any


def json_text(value: Any) -> str:
    """Return a key or value of a global keyed table as JSON."""
    return json.dumps(_plain(value), ensure_ascii=False)


def _plain(value: Any) -> Any:
    """Convert a value to types that JSON supports: a map with non-text keys becomes a list of pairs, bytes become
    base64, times ISO 8601, durations seconds.
    """
    match value:
        case list() | tuple():
            value = [_plain(item) for item in value]
        case dict() if all(isinstance(key, str) for key in value):
            value = {key: _plain(item) for key, item in value.items()}
        case dict():
            value = [[_plain(key), _plain(item)] for key, item in value.items()]
        case bytes():
            value = base64.b64encode(value).decode()
        case dt.timedelta():
            value = value / dt.timedelta(seconds=1)
        case dt.date():
            value = value.isoformat()
        case float() if not math.isfinite(value):
            value = str(value)
        case Decimal():
            value = str(value)
    return value
