"""How errors and warnings call an operator: by its name, or if it was given none, by what the user wrote."""

import re
from typing import Any

_DEFAULTS = "window|top|over|aggregate|deduplicate|process|join|forward"
_GENERATED = re.compile(rf"({_DEFAULTS})(_[0-9a-f]{{10}})?")
"""Names of operators that were given none: a kind, and behind it a digest of the definition."""
_KINDS = {
    "WindowAggregate": "group_by({keys}).agg",
    "SessionAggregate": "group_by({keys}).agg",
    "WindowTopN": "group_by({keys}).top",
    "WindowFunctions": "group_by({keys}).over",
    "UpdatingAggregate": "key_by({keys}).agg",
    "TopN": "key_by({keys}).top",
    "Deduplicate": "deduplicate({keys})",
    "ProcessOperator": "key_by({keys}).process",
    "Forward": "the rows of a source",
}


def operator_label(operator: Any) -> str:
    """Return `operator 'per_minute'`, or `group_by(driver, tumbling window of 1 minute).agg` if it has no name."""
    name = operator.operator_id
    if not _GENERATED.fullmatch(name):
        return f"operator {name!r}"
    window = getattr(operator, "window", None)
    parts = [*_keys(operator), *([] if window is None else [window.described()])]
    text = _KINDS.get(type(operator).__name__, "join(on={keys})")
    return text.replace("{keys}", ", ".join(parts))


def step_label(method: str, name: str | None) -> str:
    """Return how to call an operator that is being made: by its name, or by the method that makes it."""
    return f"{method}()" if name is None else f"operator {name!r}"


def _keys(operator: Any) -> list[str]:
    keys = getattr(operator, "keys", None)
    if keys is not None:
        return [key.name for key in keys]
    one = getattr(operator, "input", None) or operator.left
    return list(one.keys)
