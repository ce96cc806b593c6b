"""Commands that verify, repair and change state."""

from collections.abc import Sequence
from typing import Annotated

import typer

from statebed.cli.change_options import (
    TIMEOUT_S,
    DryRun,
    Offline,
    SomeEpoch,
    SomeSavepoint,
    Timeout,
    Yes,
    say_changed,
    through,
)
from statebed.cli.commands import rewrites, savepoints
from statebed.cli.confirmation import FENCES, confirm, verification_bar
from statebed.cli.options import Job, Json, OptionalJob, State
from statebed.present import units

app = typer.Typer()
app.add_typer(savepoints.app, name="savepoint")
app.add_typer(rewrites.app)

GRACE = "10 minutes"


@app.command()
def verify(
    state: State,
    job: OptionalJob = None,
    *,
    epoch: SomeEpoch = None,
    savepoint: SomeSavepoint = None,
    table: Annotated[
        list[str] | None,
        typer.Option("--table", help="Also check the Parquet table or Debezium files in this folder; repeatable."),
    ] = None,
    sinks: Annotated[
        bool, typer.Option("--sinks/--no-sinks", help="Check the tables and topics that the job's sinks write to.")
    ] = True,
    dsn: Annotated[
        list[str] | None,
        typer.Option(
            "--dsn",
            metavar="SINK=DSN",
            help="Connection string of a PostgreSQL sink, without password (PGPASSWORD, PGPASSFILE); repeatable.",
        ),
    ] = None,
    orphans: Annotated[bool, typer.Option("--orphans", help="List every object that nothing refers to.")] = False,
    json: Json = False,
) -> None:
    """Check every checksum and reference of a job, and its sinks. Exits with 1 if anything is damaged or missing."""
    from statebed.cli import output, render_changes
    from statebed.inspect import verification
    from statebed.inspect.jobs import open_log
    from statebed.sinks.manifest import verify_table

    _one_of(epoch=epoch, savepoint=savepoint)
    dsns = _by_sink(dsn or ())
    log = open_log(state, job)
    with verification_bar() as bar:
        result = verification.verify_log(log, epoch=epoch, savepoint=savepoint, on_progress=bar)
    tables = [verify_table(path) for path in table or ()]
    targets = []
    if sinks:
        tables += [
            verify_table(known.target, published=known.published, accepted=known.accepted)
            for known in result.file_tables
        ]
    if sinks and result.other_targets:
        from statebed.sinks.verification import verify_sinks  # loads the sinks of every kind

        targets = verify_sinks(log, result.other_targets, dsns=dsns)
    whole = result.whole and all(checked.whole for checked in tables) and all(sink.whole for sink in targets)
    if json:
        shown = {name: render_changes.as_json(checked) for name, checked in (("tables", tables), ("sinks", targets))}
        shown = {**render_changes.as_json(result), **shown}
        output.print_json({"whole": whole, "head_whole": result.head_whole, **shown})
        raise typer.Exit(0 if whole else 1)
    for text in render_changes.finding_lines(result.findings):
        output.say(text)
    if orphans and result.orphans:
        output.print_table(render_changes.orphans_table(result), ())
    lines = [*render_changes.verification_lines(result), *render_changes.table_lines(tables)]
    lines += [*render_changes.sink_lines(targets), *render_changes.conclusion_lines(result, tables, targets)]
    for text in lines:
        output.say(text)
    raise typer.Exit(0 if whole else 1)


def _by_sink(options: Sequence[str]) -> dict[str, str]:
    """Return the values of options of the form SINK=VALUE, by sink."""
    pairs = [option.partition("=") for option in options]
    for sink_id, separator, _ in pairs:
        if not separator or not sink_id:
            raise typer.BadParameter("write --dsn SINK=DSN, such as --dsn 'minutes=host=db.example dbname=results'")
    return {sink_id: value for sink_id, _, value in pairs}


@app.command()
def repair(
    state: State, job: OptionalJob = None, *, yes: Yes = False, dry_run: DryRun = False, json: Json = False
) -> None:
    """Repair a damaged job: verify it, report what is lost, and fork from the newest intact epoch."""
    from statebed.cli import output, render_changes
    from statebed.inspect.jobs import open_log
    from statebed.inspect.verification import verify_log
    from statebed.maintain import plan_repair
    from statebed.maintain import repair as carry_out

    log = open_log(state, job)
    with verification_bar() as bar:
        verified = verify_log(log, on_progress=bar)
    plan = plan_repair(log, verified)
    if not json:
        for text in [*render_changes.finding_lines(verified.findings), *render_changes.repair_lines(plan)]:
            output.say(text)
    changed = None
    if plan.needed and not dry_run:
        confirm(f"Fork to epoch {plan.base}? {FENCES}", yes=yes)
        changed = carry_out(log, plan)
    if json:
        output.print_json({"plan": render_changes.as_json(plan), "changed": render_changes.as_json(changed)})
    elif changed is not None:
        output.say(f"run {changed.run} builds on epoch {plan.base}: start the job to resume from there")


@app.command()
def clone(
    state: State,
    job: Job,
    to: Annotated[str, typer.Argument(help="Name of the copy; must not be in use.")],
    *,
    epoch: SomeEpoch = None,
    savepoint: SomeSavepoint = None,
    to_state: Annotated[
        str | None, typer.Option("--to-state", help="State location of the copy; default: the same as the job's.")
    ] = None,
    json: Json = False,
) -> None:
    """Copy a job to a new one with the same state, watermarks and source position. The job may be running."""
    from statebed.checkpoint import Origin
    from statebed.checkpoint.clone import clone_job
    from statebed.cli import output
    from statebed.inspect.jobs import open_log

    _one_of(epoch=epoch, savepoint=savepoint)
    open_log(state, job)
    copied = clone_job(state, job, to, origin=Origin(epoch=epoch, savepoint=savepoint), to_state=to_state)
    if json:
        output.print_json({"job": to, "state": to_state or state, "of": job, "epoch": copied})
    else:
        output.say(f"{to} is a copy of {job} at epoch {copied}: give it separate sinks, then start it")


@app.command()
def gc(
    state: State,
    job: OptionalJob = None,
    *,
    dry_run: DryRun = False,
    grace: Annotated[
        str, typer.Option("--grace", help="With --dry-run or --offline: how long files are kept for readers.")
    ] = GRACE,
    offline: Offline = False,
    yes: Yes = False,
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """Remove objects that no retained epoch, savepoint or reader needs."""
    from statebed.cli import output, render_changes
    from statebed.inspect.jobs import open_log
    from statebed.maintain import RemovedFiles, find_garbage, remove_garbage
    from statebed.quantities import parse_duration

    log, grace_us = open_log(state, job), parse_duration(grace)
    if dry_run:
        garbage = find_garbage(log, grace_us=grace_us)
        if json:
            output.print_json(render_changes.as_json(garbage))
        else:
            if garbage:
                output.print_table(render_changes.garbage_table(garbage), ())
            nbytes = units.size(sum(object_.size for object_ in garbage))
            output.say(f"would remove {units.plural(len(garbage), 'object')}, {nbytes}")
        return
    done = remove_garbage(log, through=through(offline=offline, yes=yes), grace_us=grace_us, timeout_s=timeout)
    if isinstance(done, RemovedFiles):
        if json:
            output.print_json(render_changes.as_json(done))
        else:
            records, others = (
                units.plural(count, noun) for count, noun in ((done.records, "record"), (done.objects, "other object"))
            )
            output.say(f"removed {records}, {others}")
        return
    say_changed("the live run will clean up", done, json=json)


@app.command()
def stop(
    state: State,
    job: OptionalJob = None,
    *,
    drain: Annotated[
        bool, typer.Option("--drain", help="Close all windows first; rows for them that arrive later are late.")
    ] = False,
    offline: Offline = False,
    yes: Yes = False,
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """Stop the live run of a job cleanly, with a final record in the log."""
    from statebed.inspect.jobs import open_log
    from statebed.maintain import stop_job

    log = open_log(state, job)
    changed = stop_job(log, drain=drain, through=through(offline=offline, yes=yes), timeout_s=timeout)
    say_changed("drained and stopped" if drain else "stopped", changed, json=json)


def _one_of(*, epoch: int | None, savepoint: str | None) -> None:
    if epoch is not None and savepoint is not None:
        raise typer.BadParameter("pass an epoch or a savepoint, not both", param_hint="--epoch")
