"""Before and while something is changed: whether people want it, and how far it is. Both speak on standard error."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from statebed.errors import InputError

if TYPE_CHECKING:
    from statebed.inspect.verification.verify import OnProgress
    from statebed.maintain.rewriting import OnSubtask

FENCES = "A run of the job that still goes on is fenced by this, and ends with exit code 86."


def confirm(question: str, *, yes: bool) -> None:
    """Go on when people say so; who cannot be asked must have said it before."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InputError("this asks first, and here is nobody to ask", fix="give --yes if you are sure")
    if not typer.confirm(question, err=True):
        typer.echo("nothing was changed", err=True)
        raise typer.Exit(1)


@contextmanager
def verification_bar() -> "Iterator[OnProgress]":
    """A bar on a terminal; nothing elsewhere."""
    from rich.console import Console  # noqa: PLC0415 - an extra, and only needed here
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("verifying", total=None)
        yield lambda at: bar.update(
            task,
            completed=at.done_bytes,
            total=at.total_bytes,
            description=f"verifying, {at.objects} objects" + (f", {at.findings} damaged" if at.findings else ""),
        )


@contextmanager
def subtask_bar(what: str) -> "Iterator[OnSubtask]":
    """The same, over subtasks."""
    from rich.console import Console  # noqa: PLC0415 - an extra, and only needed here
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total, last: bar.update(task, completed=done, total=total, description=f"{what}: {last}")
