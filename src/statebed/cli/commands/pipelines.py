"""Command that runs SQL text: sql."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from statebed.cli.commands.rows import Format

if TYPE_CHECKING:
    from statebed.cli.shell.shell import ShellRequest

app = typer.Typer()


@app.command()
def sql(
    file: Annotated[
        Path | None,
        typer.Argument(help="Pipeline: CREATE TABLE, CREATE VIEW, INSERT INTO and SELECT. Without it: a shell."),
    ] = None,
    *,
    execute: Annotated[
        list[str] | None, typer.Option("--execute", "-e", help="Run these statements as the shell does, and end.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Only look for mistakes; nothing is written.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Only print the plan of the job.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Print the rows that every epoch adds to the tables.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Read the available input and end.")] = False,
    job: Annotated[str | None, typer.Option("--job", help="Name of the job; default: that of the file.")] = None,
    state: Annotated[str | None, typer.Option("--state", help="State location: a folder or URL.")] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="A setting as name=value; takes precedence over SET.")
    ] = None,
    processing_time: Annotated[
        str | None, typer.Option("--processing-time", help="How often to look for input, e.g. '10 seconds'.")
    ] = None,
    removed: Annotated[
        str, typer.Option("--removed", help="What to do with state of removed operators: refuse, keep or drop.")
    ] = "refuse",
    sinks: Annotated[
        list[str] | None,
        typer.Option("--sinks", help="NAME=CHOICE for a sink that lacks epochs: rebuild, start_empty or accept_gap."),
    ] = None,
    abandon: Annotated[
        list[str] | None,
        typer.Option("--abandon", help="Give up the unpublished epochs of a sink that the job no longer has."),
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option("--skip", help="NAME=EPOCH: give up the unpublished rows of a sink up to this epoch."),
    ] = None,
    sources: Annotated[
        list[str] | None,
        typer.Option("--sources", help="NAME=CHOICE for a source whose messages are gone: earliest or latest."),
    ] = None,
    output_format: Annotated[
        Format, typer.Option("--format", help="Output of a shell's SELECT; json prints one object per line.")
    ] = Format.TABLE,
) -> None:
    """Run SQL: a file as one job, which resumes where it ended, or statements in a shell.

    Without FILE, statements are read from the terminal, from -e, or from standard input.
    """
    if check and explain:
        raise typer.BadParameter("--check is given, too", param_hint="--explain")
    if once and processing_time is not None:
        raise typer.BadParameter("--once is given, too", param_hint="--processing-time")
    from statebed.cli import pipeline
    from statebed.cli.shell.shell import ShellRequest

    settings = pipeline.parse_pairs("--set", setting or [], example="parallelism=4")
    choices = pipeline.parse_choices(
        removed=removed, sinks=sinks or [], abandon=abandon or [], skip=skip or [], sources=sources or []
    )
    if file is None:
        only_of_file = {"--check": check, "--explain": explain, "--watch": watch}
        for option in (option for option, is_given in only_of_file.items() if is_given):
            raise typer.BadParameter("it needs a FILE; in the shell, write EXPLAIN ...", param_hint=option)
        every = () if processing_time is None else (("processing_time", processing_time),)
        _shell(ShellRequest(job, state, (*settings, *every), output_format.value, choices, once), execute or [])
        return
    if execute:
        raise typer.BadParameter("a FILE is given, too", param_hint="--execute")
    request = pipeline.PipelineRequest(str(file), pipeline.read_text(file), job, state, settings, choices)
    if check:
        pipeline.check(request)
    elif explain:
        pipeline.explain(request)
    else:
        pipeline.run(request, once=once, watch=watch, processing_time=processing_time)


def _shell(request: "ShellRequest", texts: Sequence[str]) -> None:
    """Run statements from -e, from the terminal or from standard input."""
    from statebed.cli.shell import shell

    if texts:
        shell.run_statements(request, texts)
    elif sys.stdin.isatty():
        shell.interact(request)
    else:
        shell.run_statements(request, [sys.stdin.read()], name="standard input")
