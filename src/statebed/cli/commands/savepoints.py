"""`statebed savepoint`: creates, drops and lists savepoints."""

from typing import Annotated

import typer

from statebed.cli import completion
from statebed.cli.change_options import TIMEOUT_S, Offline, SomeEpoch, Timeout, Yes, say_changed, through
from statebed.cli.options import Job, Json, OptionalJob, State

app = typer.Typer(help="Create, drop and list savepoints.", no_args_is_help=True)


@app.command("create")
def create(
    state: State,
    job: Job,
    name: Annotated[str, typer.Argument(help="Name of the savepoint.")],
    *,
    epoch: SomeEpoch = None,
    offline: Offline = False,
    yes: Yes = False,
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """Retain an epoch under a name until the savepoint is dropped."""
    from statebed.inspect.jobs import open_log
    from statebed.maintain import create_savepoint

    log = open_log(state, job)
    way = through(offline=offline, yes=yes)
    changed = create_savepoint(log, name, epoch=epoch, through=way, timeout_s=timeout)
    say_changed(f"savepoint {name!r} is created", changed, json=json)


@app.command("drop")
def drop(
    state: State,
    job: Job,
    name: Annotated[str, typer.Argument(help="Name of the savepoint.", autocompletion=completion.savepoints)],
    *,
    offline: Offline = False,
    yes: Yes = False,
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """Drop a savepoint; clean-up then removes the files that only it needed."""
    from statebed.inspect.jobs import open_log
    from statebed.maintain import drop_savepoint

    log = open_log(state, job)
    changed = drop_savepoint(log, name, through=through(offline=offline, yes=yes), timeout_s=timeout)
    say_changed(f"savepoint {name!r} is dropped", changed, json=json)


@app.command("list")
def list_(state: State, job: OptionalJob = None, *, json: Json = False) -> None:
    """List the savepoints of a job."""
    from statebed.cli import output, render_changes
    from statebed.inspect.jobs import open_log
    from statebed.maintain import list_savepoints

    log = open_log(state, job)
    savepoints = list_savepoints(log)
    if json:
        output.print_json(render_changes.as_json(savepoints))
    elif savepoints:
        output.print_table(render_changes.savepoints_table(savepoints), (), expendable=("problem", "age"))
    else:
        output.say(f"{log.job_id} has no savepoints")
