"""Before and while something is changed: whether people want it, and how far it is. Both speak on standard error."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from statebed.errors import InputError

if TYPE_CHECKING:
    from statebed.inspect.verification.verify import OnProgress
    from statebed.maintain.rewrite import OnSubtask

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
    with _bar("verifying", in_bytes=True) as update:
        yield lambda at: update(
            at.done_bytes,
            at.total_bytes,
            f"verifying, {at.objects} objects" + (f", {at.findings} damaged" if at.findings else ""),
        )


@contextmanager
def subtask_bar(what: str) -> "Iterator[OnSubtask]":
    """The same, over subtasks."""
    with _bar(what, in_bytes=False) as update:
        yield lambda done, total, last: update(done, total, f"{what}: {last}")


@contextmanager
def _bar(what: str, *, in_bytes: bool) -> Iterator[Callable[[int, int, str], None]]:
    from rich import progress
    from rich.console import Console

    amount = (
        (progress.DownloadColumn(), progress.TimeRemainingColumn()) if in_bytes else (progress.MofNCompleteColumn(),)
    )
    columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), *amount)
    screen = Console(stderr=True)
    with progress.Progress(*columns, console=screen, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total, told: bar.update(task, completed=done, total=total, description=told)
