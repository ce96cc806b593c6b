"""Confirmation prompt and progress bars of commands that change state, both on standard error."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from statebed.errors import InputError

if TYPE_CHECKING:
    from statebed.inspect.verification.verify import OnProgress
    from statebed.maintain.rewrite import OnSubtask

FENCES = "This fences a run of the job that is still live; it ends with exit code 86."


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation, and exit if the user declines. Raise InputError if stdin is not a terminal and `yes` is not
    set.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise InputError("confirmation needed, but stdin is not a terminal", fix="pass --yes")
    if not typer.confirm(question, err=True):
        typer.echo("nothing was changed", err=True)
        raise typer.Exit(1)


@contextmanager
def verification_bar() -> "Iterator[OnProgress]":
    """Show the progress of a verification on a terminal; show nothing elsewhere."""
    with _bar("verifying", in_bytes=True) as update:
        yield lambda at: update(
            at.done_bytes,
            at.total_bytes,
            f"verifying, {at.objects} objects" + (f", {at.findings} damaged" if at.findings else ""),
        )


@contextmanager
def subtask_bar(what: str) -> "Iterator[OnSubtask]":
    """Show progress by subtask on a terminal; show nothing elsewhere."""
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
        yield lambda done, total, text: bar.update(task, completed=done, total=total, description=text)
