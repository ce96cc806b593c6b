"""The `statebed` command line; `statebed --help` lists the commands.

Errors that statebed raises are printed as text, and the process exits with the error's exit code. `--debug` also shows
the traceback. Wrong usage exits with code 2.
"""

import importlib.util
import io
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, cast

from statebed.cli.safe_text import plain_lines
from statebed.errors import StatebedError

__all__ = ["main"]

UNAVAILABLE_EXIT_CODE = 69


@dataclass
class Invocation:
    """Values of the options given before the command."""

    debug: bool = False


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return the exit code of the process."""
    missing = [name for name in ("typer", "rich") if importlib.util.find_spec(name) is None]
    if missing:
        names = " and ".join(missing)
        sys.stderr.write(f"statebed: the command line needs {names}. Run: pip install 'statebed[cli]'\n")
        return UNAVAILABLE_EXIT_CODE
    from statebed.cli.app import command

    # A stream is None if the shell closed it, as in `statebed ls >&-`.
    sys.stdin = sys.stdin or _nowhere("r")
    sys.stdout = sys.stdout or _nowhere("w")
    sys.stderr = sys.stderr or _nowhere("w")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # characters that the terminal's encoding lacks are shown as escapes
            stream.reconfigure(errors="backslashreplace")
    invocation = Invocation()
    try:
        code = _exit_code(lambda: command()(args=arguments, prog_name="statebed", obj=invocation))
        sys.stdout.flush()
    except StatebedError as error:
        _show(error, str(error), invocation)
        return error.exit_code
    except OSError as error:
        if sys.__stdout__ is not None and sys.stdout is sys.__stdout__:
            # What is still buffered cannot be written when Python exits either.
            with _nowhere("w") as nowhere:
                os.dup2(nowhere.fileno(), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            _show(error, f"statebed: the output, or a local file, cannot be written or read: {error}", invocation)
        return 1
    return code


def _exit_code(run: Callable[[], None]) -> int:
    try:
        run()
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 0
    return 0


def _show(error: Exception, text: str, invocation: Invocation) -> None:
    if invocation.debug:
        traceback.print_exception(error)
    else:
        sys.stderr.write(f"{plain_lines(text)}\n")


def _nowhere(mode: str) -> TextIO:
    return cast("TextIO", Path(os.devnull).open(mode, encoding="utf-8"))
