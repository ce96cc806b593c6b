"""Descriptions of operators in words, from the JSON in records. Pure; tolerates malformed definitions."""

import json
from collections.abc import Iterator
from typing import Any

from statebed.present import units

_MICROS = "_us"


def parsed(definition: str) -> dict[str, Any]:
    """Parse a definition. Return an empty dict if there is none or it cannot be parsed."""
    try:
        content = json.loads(definition) if definition else {}
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def kind(definition: str) -> str:
    """Return a short description, such as "window aggregate, tumbling 10 s"."""
    parts = parsed(definition)
    name = str(parts.get("kind", "operator")).replace("_", " ")
    window = _window(parts.get("window"))
    return f"{name}, {window}" if window else name


def described(definition: str) -> Iterator[tuple[str, str]]:
    """Yield the name and description of each part."""
    for name, value in parsed(definition).items():
        if value in (None, [], {}, ""):
            continue
        if name == "window" and (window := _window(value)):
            yield name, window
        elif name == "emit" and (emit := _emit(value)):
            yield name, emit
        elif name.endswith(_MICROS) and isinstance(value, int):
            yield name.removesuffix(_MICROS).replace("_", " "), units.duration(value)
        else:
            yield name.replace("_", " "), _text(value)


def _window(value: Any) -> str:
    """Describe a window: shape, width, slide, offset."""
    if not isinstance(value, list) or len(value) < 2 or not isinstance(value[0], str):  # noqa: PLR2004 - shape and width
        return ""
    shape, lengths = str(value[0]), value[1:]
    numbers = [length for length in lengths if isinstance(length, int)]
    if not numbers:
        return shape
    text = f"{shape} {units.duration(numbers[0])}"
    if len(numbers) > 1 and numbers[1] not in {0, numbers[0]}:
        text += f" every {units.duration(numbers[1])}"
    return text


def _emit(value: Any) -> str:
    """Describe when results are emitted, and the allowed lateness."""
    match value:
        case [str(when), int(lateness_us)]:
            return f"{when}, allowed lateness {units.duration(lateness_us)}" if lateness_us else when
    return ""


def _text(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    if isinstance(value, list) and all(isinstance(item, list) and item for item in value):
        return "; ".join(" ".join(filter(None, map(_text, item))) for item in value)
    if isinstance(value, str | int | float):
        return str(value)
    return json.dumps(value, ensure_ascii=False)
