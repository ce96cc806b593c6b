"""Names of operators in errors, warnings and pages: the name set by the user, or else the calls that define the
operator.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from statebed.errors import StatebedError
from statebed.operators.window_definition import SessionWindow, Window

_DEFAULTS = "window|top|over|aggregate|deduplicate|changelog|process|join|lookup|forward"
_GENERATED = re.compile(rf"({_DEFAULTS})(_[0-9a-f]{{10}}(_[0-9]+)?)?")
"""Pattern of generated names: a kind, followed by a digest of the definition, and a number if it has no state."""
_METHODS = {
    "window_aggregate": "group_by({parts}).agg",
    "session_aggregate": "group_by({parts}).agg",
    "window_top_n": "group_by({parts}).top",
    "window_functions": "group_by({parts}).over",
    "updating_aggregate": "key_by({parts}).agg",
    "top_n": "key_by({parts}).top",
    "deduplicate": "deduplicate({parts})",
    "change_events": "changelog(key={parts})",
    "process": "key_by({parts}).process",
    "interval_join": "join(on={parts})",
    "window_join": "join(on={parts})",
    "as_of_join": "join(on={parts})",
    "updating_join": "join(on={parts})",
    "lookup_join": "lookup(on={parts})",
    "forward": "the rows of a source",
}
"""Method that creates an operator, by the kind in its definition."""


def operator_label(operator: Any) -> str:
    """Return `operator 'per_minute'`, or `group_by(driver, tumbling window of 1 minute).agg` if it has no name.

    It is called for errors about invalid operators, so it only uses keys and window.
    """
    if not has_generated_name(operator.operator_id):
        return f"operator {operator.operator_id!r}"
    kind = re.sub("(?<!^)(?=[A-Z])", "_", type(operator).__name__).lower().removesuffix("_operator")
    window = getattr(operator, "window", None)
    return _label(kind, _keys(operator), "" if window is None else window.described())


def stored_label(operator_id: str, definition: str) -> str:
    """Return the label of an operator from its id and its definition as JSON, as stored in a record."""
    if not has_generated_name(operator_id):
        return f"operator {operator_id!r}"
    return written_name(operator_id, definition)


def written_name(operator_id: str, definition: str) -> str:
    """Return an operator's name as shown on pages: the one set by the user, or else the calls that define it.

    The id is returned for a definition that cannot be parsed, such as one of a later version.
    """
    if not has_generated_name(operator_id):
        return operator_id
    try:
        described = json.loads(definition)
        keys = described["keys"] if "keys" in described else described["left"]["keys"]
        texts = [str(key[0]) if isinstance(key, list) else str(key) for key in keys]
        return _label(described["kind"], texts, _stored_window(described))
    except (ValueError, TypeError, KeyError, StatebedError):
        return operator_id


def has_generated_name(operator_id: str) -> bool:
    """Return whether the user set no name for the operator, so that its id is a kind and a digest."""
    return _GENERATED.fullmatch(operator_id) is not None


def has_digest(operator_id: str) -> bool:
    """Return whether an id is generated and complete. The kind alone, such as `window`, may be a name of the user."""
    return has_generated_name(operator_id) and operator_id not in _DEFAULTS.split("|")


def step_label(method: str, name: str | None) -> str:
    """Return the label of an operator that is being created: its name, or the method that creates it."""
    return f"{method}()" if name is None else f"operator {name!r}"


def _keys(operator: Any) -> list[str]:
    keys = getattr(operator, "keys", None)
    if keys is not None:
        return [key.name for key in keys]
    input_ = getattr(operator, "input", None) or operator.left
    return list(input_.keys)


def _label(kind: str, keys: Sequence[str], window: str) -> str:
    return _METHODS[kind].replace("{parts}", ", ".join([*keys, window] if window else keys))


def _stored_window(described: Mapping[str, Any]) -> str:
    if "gap" in described:
        return SessionWindow(int(described["gap"]), described.get("on")).described()
    return Window.from_data(described["window"]).described() if "window" in described else ""
