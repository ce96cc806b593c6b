"""The commands that only look: jobs and epochs, what one epoch consists of."""

# ruff: noqa: PLC0415 - imports inside the commands keep the start short

from typing import Annotated

import typer

from statebed.cli.options import DEFAULT_STATE, Job, Json, State

app = typer.Typer()


@app.command()
def ls(
    state: State = DEFAULT_STATE,
    job: Annotated[str | None, typer.Argument(help="List the epochs of this job.")] = None,
    json: Json = False,
) -> None:
    """List the jobs of a state location, or the epochs of a job."""
    from statebed.cli import output, render
    from statebed.inspect import jobs as listing
    from statebed.inspect import records

    if job is None:
        jobs = listing.summarise_jobs(state)
        if json:
            output.print_json([output.with_times(item) for item in jobs])
        elif jobs:
            output.print_table(render.jobs_table(jobs, where=state), render.problems(jobs))
        else:
            typer.echo(f"no job has state at {state}")
        return
    epochs = records.summarise_epochs(listing.open_log(state, job))
    if json:
        output.print_json([output.with_times(item) for item in epochs])
    else:
        shown = render.epochs_table(epochs, title=f"epochs of {job} at {state}")
        output.print_table(shown, render.problems(epochs), least=render.LEAST_OF_EPOCHS)


@app.command()
def show(
    state: State,
    job: Job,
    epoch: Annotated[int | None, typer.Argument(help="The epoch; the newest if left out.", min=1)] = None,
    json: Json = False,
) -> None:
    """Show what one epoch consists of: operators, tables, files, sinks, source position."""
    from statebed.cli import output, render
    from statebed.inspect import contents, records
    from statebed.inspect.jobs import open_log
    from statebed.inspect.sizes import size_of_folder

    log = open_log(state, job)
    record = records.record_at(log, epoch)
    summary = records.summarise(record, held=size_of_folder(log, record.epoch))
    parts = contents.contents_of(log, record)
    if json:
        head = {"job": job, "written_by": record.written_by, "min_epoch": record.min_epoch}
        output.print_json({**head, **output.with_times(summary), **output.with_times(parts)})
        return
    console = output.console()
    for piece in render.one_epoch(record, summary, parts):
        console.print(piece)
