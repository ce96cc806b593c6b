"""Reads lines with readline of the standard library: editing, completion and a history that outlives the shell."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from statebed.errors import StatebedError
from statebed.sql.completion import completed_word

_MAX_LINES = 2000
_SECRET_WORDS = ("password", "secret")
_DELIMITERS = " \t\n;,()=<>+-*/%|'\""

readline: ModuleType | None
try:
    import readline
except ImportError:  # pragma: no cover - a Python without it; lines are read without editing
    readline = None


def history_file() -> Path:
    """Return where the statements of earlier shells are kept."""
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return folder / "statebed" / "sql_history"


class LineEditor:
    """Reads lines from a terminal. `complete` gets the statement up to the cursor."""

    def __init__(self, complete: Callable[[str], list[str]], file: Path) -> None:
        self._complete = complete
        self._file = file
        self._before = ""
        self._matches: list[str] = []
        if readline is None:  # pragma: no cover
            return
        readline.set_completer(self._match)
        readline.set_completer_delims(_DELIMITERS)
        is_libedit = "libedit" in (readline.__doc__ or "")
        readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")
        if not is_libedit:
            readline.parse_and_bind("set enable-bracketed-paste on")
        readline.set_history_length(_MAX_LINES)
        if hasattr(readline, "set_auto_history"):
            readline.set_auto_history(False)
        with contextlib.suppress(OSError):
            readline.read_history_file(file)

    def read(self, prompt: str, *, before: str) -> str:
        """Read a line; `before` are the lines of the same statement. Raise EOFError at the end of the input."""
        self._before = before
        return input(prompt)

    def remember(self, statement: str) -> None:
        """Add a statement to the history, on one line; statements with a password are left out."""
        if readline is None or any(word in statement.lower() for word in _SECRET_WORDS):
            return
        line = statement if "--" in statement else " ".join(statement.split("\n"))
        for part in filter(None, map(str.strip, line.split("\n"))):
            count = readline.get_current_history_length()
            if not count or readline.get_history_item(count) != part:
                readline.add_history(part)
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            if not self._file.exists():
                self._file.touch(mode=0o600)
            readline.write_history_file(self._file)

    def _match(self, word: str, place: int) -> str | None:
        """Return a completion of the word at the cursor; readline calls this with 0, 1, 2, ... until it is None."""
        if place == 0:
            try:
                assert readline is not None
                line = readline.get_line_buffer()[: readline.get_endidx()]
                text = self._before + line
                skipped = len(completed_word(text)) - len(word)
                self._matches = [match[skipped:] for match in self._complete(text)] if skipped >= 0 else []
            except StatebedError:  # a location that cannot be read has nothing to offer
                self._matches = []
        return self._matches[place] if place < len(self._matches) else None
