"""Commands to try after the demo, printed so that they can be pasted into a shell."""

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from statebed.cli.extras import is_installed
from statebed.demo.job import JOB, DemoFolder
from statebed.errors import StatebedError
from statebed.inspect import read_state
from statebed.inspect.records import newest
from statebed.protocol.records import data_epoch_of

_BUSIEST = "SELECT auction, sum(bids) AS bids FROM state GROUP BY auction ORDER BY bids DESC, auction LIMIT 5"
_TOP_OF_ALL = (
    "import duckdb; r = duckdb.read_parquet({files!r}); "
    "r.aggregate('auction, sum(bids) AS bids').order('bids DESC').limit(5).show()"
)


@dataclass(frozen=True)
class Suggestion:
    """A command and its purpose."""

    what: str
    command: str


def show_next(screen: Console, folder: DemoFolder) -> None:
    """Print the suggested commands."""
    screen.print("next:")
    for suggestion in suggestions(folder):
        screen.print(f"  # {suggestion.what}", markup=False)
        screen.print(f"  {suggestion.command}", soft_wrap=True, markup=False)


def suggestions(folder: DemoFolder) -> list[Suggestion]:
    """Return the suggested commands, for a shell in the current folder of this process."""
    program, state = _program("statebed"), shlex.quote(str(folder.state))
    option = "" if str(folder.root) == "demo-state" else f" --state {shlex.quote(str(folder.root))}"
    return [
        Suggestion("the epochs of the job", f"{program} ls {state} {JOB}"),
        Suggestion("contents of the newest epoch; more with --files, --schema", f"{program} show {state} {JOB}"),
        *_of_rows(folder, program, state),
        Suggestion("verify every checksum", f"{program} verify {state} {JOB}"),
        *_of_results(folder),
        *_in_a_browser(program, state),
        Suggestion("process more events, resuming where it ended", f"{program} demo{option}"),
        Suggestion("kill the job in mid-epoch, and compare the result", f"{program} demo{option} --crash"),
    ]


def _of_rows(folder: DemoFolder, program: str, state: str) -> Iterator[Suggestion]:
    """Yield suggestions that need rows of state: the windows that are still open."""
    try:
        head = newest(folder.log())
        epoch = data_epoch_of(head) if head else 0
        rows = read_state(folder.state, job=JOB).head(1)
        base = folder.log().read(epoch).base if epoch else 0
    except StatebedError:  # nothing is committed yet
        return
    if not rows.num_rows:
        return
    yield Suggestion("the windows that are still open", f"{program} state {state} {JOB}")
    query = _quoted(_BUSIEST)
    yield Suggestion("the busiest auctions, in SQL", f"{program} state {state} {JOB} --sql {query}")
    key = rows.column("auction")[0].as_py()
    yield Suggestion("look up a key in every table", f"{program} get {state} {JOB} {key}")
    if base:
        yield Suggestion("what the newest epoch changed", f"{program} diff {state} {JOB} {base} {epoch} --rows")
    target = shlex.quote(f"{folder.root / 'export' / f'epoch_{epoch}'}.parquet")
    yield Suggestion("export the rows to a file", f"{program} export {state} {JOB} {target}")


def _of_results(folder: DemoFolder) -> Iterator[Suggestion]:
    if any(folder.results.rglob("*.parquet")):
        code = _TOP_OF_ALL.format(files=f"{folder.results}/epoch=*/*.parquet")
        yield Suggestion(
            "the results are plain Parquet files, for any program", f"{_program('python')} -c {_quoted(code)}"
        )


def _in_a_browser(program: str, state: str) -> Iterator[Suggestion]:
    if is_installed("starlette"):
        yield Suggestion("the dashboard in a browser (Ctrl-C stops it)", f"{program} ui {state}")


def _quoted(code: str) -> str:
    """Quote code for the shell, in double quotes if possible because the code contains single ones."""
    return shlex.quote(code) if set(code) & set('"$`\\!') else f'"{code}"'


def _program(name: str) -> str:
    """Return how to call a program of this environment from the current folder."""
    here = Path(sys.executable).parent / name
    program = shutil.which(name)
    if program and Path(program) == here:
        return name
    return shlex.quote(os.path.relpath(here))
