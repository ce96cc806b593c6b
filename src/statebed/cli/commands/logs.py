"""Commands that show logs and epochs: ls, show, top."""

from typing import Annotated

import typer

from statebed.cli import completion
from statebed.cli.options import DEFAULT_STATE, Json, Operator, OptionalJob, Savepoint, State

NEWEST = 20
"""Number of epochs listed by default."""
REFERRERS = 1000
"""Maximum number of retained epochs searched for references to a file."""

app = typer.Typer()


@app.command()
def ls(
    state: State = DEFAULT_STATE,
    job: Annotated[str | None, typer.Argument(help="Job whose epochs to list.", autocompletion=completion.jobs)] = None,
    *,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, help="Number of newest epochs to list; 0 lists all.")
    ] = NEWEST,
    before: Annotated[int | None, typer.Option("--before", min=1, help="Only epochs below this number.")] = None,
    runs: Annotated[bool, typer.Option("--runs", help="List the runs of the job instead of its epochs.")] = False,
    lineages: Annotated[
        bool, typer.Option("--lineages", help="List the lineages of the job: where it was forked.")
    ] = False,
    savepoints: Annotated[bool, typer.Option("--savepoints", help="List the savepoints of the job.")] = False,
    json: Json = False,
) -> None:
    """List the jobs of a state location, or the epochs of a job."""
    chosen = [name for name, wanted in (("runs", runs), ("lineages", lineages), ("savepoints", savepoints)) if wanted]
    if len(chosen) > 1:
        raise typer.BadParameter(f"--{chosen[0]} and --{chosen[1]} cannot be combined", param_hint=f"--{chosen[1]}")
    if before is not None and (chosen or job is None):
        raise typer.BadParameter("it pages through the epochs of a job", param_hint="--before")
    from statebed.cli import listings

    if job is None and not chosen:
        listings.print_jobs(state, as_json=json)
    elif not chosen:
        listings.print_epochs(state, job, limit=limit or None, before=before, as_json=json)
    elif runs:
        listings.print_runs(state, job, limit=limit or None, as_json=json)
    elif lineages:
        listings.print_lineages(state, job, limit=limit or None, as_json=json)
    else:
        listings.print_savepoints(state, job, as_json=json)


@app.command()
def show(
    state: State,
    job: OptionalJob = None,
    epoch: Annotated[
        int | None,
        typer.Argument(help="Epoch to show; default: the newest.", min=1, autocompletion=completion.epochs),
    ] = None,
    *,
    savepoint: Savepoint = None,
    operator: Operator = None,
    files: Annotated[bool, typer.Option("--files", help="Also list every data file.")] = False,
    needed_by: Annotated[
        bool, typer.Option("--needed-by", help="List the data files and the epochs that need each.")
    ] = False,
    subtasks: Annotated[bool, typer.Option("--subtasks", help="Also show the key hashes of each subtask.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Also show the columns of tables.")] = False,
    json: Json = False,
) -> None:
    """Show the contents of one epoch: operators, tables, files, sinks, source position, time and memory."""
    if epoch is not None and savepoint is not None:
        raise typer.BadParameter("an epoch is given, too", param_hint="--savepoint")
    from statebed.cli import epoch_details, output

    shown = epoch_details.look(
        state,
        job,
        epoch_details.EpochDetails(
            epoch=epoch,
            savepoint=savepoint,
            operator=operator,
            files=files or needed_by,
            referrers=REFERRERS if needed_by else 0,
            schema=schema,
            subtasks=subtasks,
        ),
    )
    if json:
        output.print_json(epoch_details.document(shown))
    else:
        epoch_details.print_epoch(shown)


@app.command()
def top(
    state: State = DEFAULT_STATE,
    job: OptionalJob = None,
    *,
    every: Annotated[float, typer.Option("--every", min=0.1, help="Seconds between two refreshes.")] = 2.0,
    epochs: Annotated[
        int, typer.Option("--epochs", min=1, max=1000, help="Number of epochs over which rates are computed.")
    ] = 30,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
    json: Json = False,
) -> None:
    """Watch a running job: throughput, lag, state by tier, memory, phases. Quit with q or Ctrl-C."""
    import sys

    from statebed.cli import top as shown

    if once or json or not sys.stdout.isatty():
        shown.print_once(state, job, epochs=epochs, as_json=json)
    else:
        shown.watch(state, job, epochs=epochs, every=every)
