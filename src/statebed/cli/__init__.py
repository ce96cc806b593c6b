"""The `statebed` command line; `statebed --help` lists the commands.

Errors that statebed raises are printed as text, and the process exits with the error's exit code. `--debug` also shows
the traceback. Wrong usage exits with code 2.
"""

import importlib.util
import io
import sys
import traceback
from dataclasses import dataclass

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

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # characters that the terminal's encoding lacks are shown as escapes
            stream.reconfigure(errors="backslashreplace")
    invocation = Invocation()
    try:
        command()(args=arguments, prog_name="statebed", obj=invocation)
    except StatebedError as error:
        if invocation.debug:
            traceback.print_exception(error)
        else:
            sys.stderr.write(f"{plain_lines(str(error))}\n")
        return error.exit_code
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 0
    return 0
