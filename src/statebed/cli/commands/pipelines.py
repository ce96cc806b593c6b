"""Command that runs SQL text: sql."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def sql(
    file: Annotated[Path, typer.Argument(help="SQL text: CREATE TABLE, CREATE VIEW, INSERT INTO and SELECT.")],
    *,
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
) -> None:
    """Run a pipeline of SQL text: all its INSERTs are one job, which resumes where it ended."""
    if check and explain:
        raise typer.BadParameter("--check is given, too", param_hint="--explain")
    if once and processing_time is not None:
        raise typer.BadParameter("--once is given, too", param_hint="--processing-time")
    from statebed.cli import pipeline

    request = pipeline.PipelineRequest(
        str(file), pipeline.read_text(file), job, state, pipeline.parse_settings(setting or [])
    )
    if check:
        pipeline.check(request)
    elif explain:
        pipeline.explain(request)
    else:
        pipeline.run(request, once=once, watch=watch, processing_time=processing_time)
