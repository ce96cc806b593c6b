"""Writes docs/reference/errors.md from statebed.errors: `python tests/docs/errors_page.py` replaces the page."""

import inspect
from pathlib import Path

from statebed import errors
from statebed.errors import FormatError, InputError, ProtocolError, StatebedError, StorageError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "errors.md"

_HEAD = """# Errors

Every error that statebed raises on purpose is a `StatebedError` from `statebed.errors`. It has a stable `code`, and
the attributes `what` (what is wrong), `where`, and `fix` (what to do). Its text contains all of them:

```text
[EPOCH_NOT_RETAINED] epoch 40 cannot be restored: the retained epochs are 61 to 75
  where: job rides
  what to do: choose one of these (`statebed ls` lists them), or a savepoint
```

Catch a group (`InputError`, `StorageError`, `FormatError`, `ProtocolError`) or a single class. If a builtin exception
fits, it is a second base class. The command line prints the text on stderr and exits with the code in the table: 1, or
86 for a fenced run ([what to do](../howto/fenced-runs.md)). Wrong usage of the command line exits with 2.
[Error messages](error-messages.md) shows what common mistakes print.

*This page is generated from the code, and a test compares them.*
"""

_GROUPS: list[tuple[str, type[StatebedError], str]] = [
    ("Input", InputError, "Detected before anything is written. Correct the call."),
    ("Storage", StorageError, "The store failed or did not behave as required."),
    ("Format", FormatError, "Stored bytes do not conform to the format. They are never returned as data."),
    ("Protocol", ProtocolError, "The state of the log does not allow the operation."),
    ("Running", StatebedError, "All other errors."),
]


def page() -> str:
    """Return the whole page."""
    kinds = [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, StatebedError) and kind is not StatebedError
    ]
    kinds.sort(key=lambda kind: inspect.getsourcelines(kind)[1])
    parts = [_HEAD]
    for title, group, about in _GROUPS:
        members = [kind for kind in kinds if issubclass(kind, group)]
        kinds = [kind for kind in kinds if kind not in members]
        rows = "\n".join(_row(kind) for kind in members)
        parts.append(
            f"## {title}\n\n{about}\n\n| code | class | also a | exit code | meaning |\n|---|---|---|---|---|\n{rows}\n"
        )
    return "\n".join(parts)


def _row(kind: type[StatebedError]) -> str:
    builtin = [f"`{base.__name__}`" for base in kind.__bases__ if not issubclass(base, StatebedError)]
    meaning = " ".join((inspect.getdoc(kind) or "").partition(">>>")[0].split())  # without the example
    return f"| `{kind.code}` | `{kind.__name__}` | {', '.join(builtin)} | {kind.exit_code} | {meaning} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
