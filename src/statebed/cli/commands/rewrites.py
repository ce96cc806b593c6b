"""Commands that rewrite state: rescale, compact, migrate."""

from typing import Annotated

import typer

from statebed.cli import completion
from statebed.cli.change_options import TIMEOUT_S, DryRun, Memory, Offline, Timeout, Yes, say_changed, through
from statebed.cli.confirmation import FENCES, confirm, subtask_bar
from statebed.cli.options import Job, Json, OptionalJob, State

app = typer.Typer()


@app.command()
def rescale(
    state: State,
    job: Job,
    parallelism: Annotated[int, typer.Argument(help="New number of subtasks.")],
    *,
    offline: Offline = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Assign the state of a stopped job to another number of subtasks; no file is rewritten."""
    from statebed.cli import output
    from statebed.errors import InputError
    from statebed.inspect.jobs import open_log
    from statebed.maintain import is_over, rescale_offline, whole_head

    log = open_log(state, job)
    head = whole_head(log)
    idle = not offline and is_over(log, head)
    if not offline and not idle:
        raise InputError(
            "the parallelism of a live run cannot be changed",
            where=f"job {log.job_id}",
            fix=f"restart the job with parallelism={parallelism}, which re-assigns its state; "
            "or stop it and pass --offline",
        )
    if not idle:
        confirm(f"Re-assign the state of {log.job_id} to {parallelism} subtasks? {FENCES}", yes=yes)
    changed = rescale_offline(log, parallelism, only_after=int(head.epoch) if idle else None)
    if changed is None and not json:
        output.say(f"the state has {parallelism} subtasks already")
    else:
        say_changed(f"the state has {parallelism} subtasks", changed, json=json)


@app.command()
def compact(
    state: State,
    job: OptionalJob = None,
    *,
    operator: Annotated[
        str | None, typer.Option("--operator", "-o", help="Only this operator.", autocompletion=completion.operators)
    ] = None,
    table: Annotated[
        str | None, typer.Option("--table", "-t", help="Only this table.", autocompletion=completion.tables)
    ] = None,
    memory: Memory = None,
    offline: Offline = False,
    yes: Yes = False,
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """Compact files: gradually in the live run, or all at once with --offline or if the job is not running."""
    from statebed.cli import output, render_changes
    from statebed.errors import InputError
    from statebed.format import checkpoint_pb2 as pb
    from statebed.inspect.jobs import open_log
    from statebed.maintain import carry_out, compact_offline, is_over, whole_head

    log = open_log(state, job)
    head = whole_head(log)
    idle = not offline and is_over(log, head)
    if not offline and not idle:
        if operator or table or memory:
            raise InputError(
                "a live run chooses the files to compact itself",
                where=f"job {log.job_id}",
                fix="leave out --operator, --table and --memory, or pass --offline",
            )
        request = pb.Request(compact=pb.CompactRequest())
        changed = carry_out(log, request, through=through(offline=False, yes=yes), timeout_s=timeout)
        say_changed("files are compacted after the next epoch", changed, json=json)
        return
    if not idle:
        confirm(f"Compact the files of {log.job_id}? {FENCES}", yes=yes)
    with subtask_bar("merging") as bar:
        done = compact_offline(
            log,
            operator=operator,
            table=table,
            memory=_bytes(memory),
            on_subtask=bar,
            only_after=int(head.epoch) if idle else None,
        )
    if json:
        output.print_json(render_changes.as_json(done))
    elif done.changed is None:
        output.say("no files need compaction")
    else:
        output.print_table(render_changes.rewrites_table(done.tables), ())
        output.say(render_changes.changed_line("compacted", done.changed))


@app.command()
def migrate(
    state: State,
    job: OptionalJob = None,
    *,
    types: Annotated[
        list[str] | None,
        typer.Option("--type", help="Type of the values of a global table: OPERATOR.TABLE=module:Class; repeatable."),
    ] = None,
    memory: Memory = None,
    dry_run: DryRun = False,
    offline: Offline = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Rewrite files that have older columns and values of older versions. The job must be stopped."""
    from statebed.cli import output, render_changes
    from statebed.errors import InputError
    from statebed.inspect.jobs import open_log
    from statebed.maintain import find_outdated, is_over, migrate_offline, whole_head

    log = open_log(state, job)
    head = whole_head(log)
    idle = not offline and is_over(log, head)
    declared = _types(types or [])
    outdated = find_outdated(log, declared)
    changed = None
    if outdated and not dry_run:
        if not offline and not idle:
            raise InputError(
                "a live run migrates files only when it compacts them, not on request",
                where=f"job {log.job_id}",
                fix="pass --dry-run to see what would be migrated; stop the job first, or pass --offline to fence it",
            )
        if not idle:
            confirm(f"Rewrite {len(outdated)} tables of {log.job_id}? {FENCES}", yes=yes)
        with subtask_bar("migrating") as bar:
            _, done = migrate_offline(
                log,
                types=declared,
                memory=_bytes(memory),
                on_subtask=bar,
                only_after=int(head.epoch) if idle else None,
            )
        changed = done.changed
    if json:
        output.print_json({"outdated": render_changes.as_json(outdated), "changed": render_changes.as_json(changed)})
        return
    if not outdated:
        output.say("all files and values have the current columns and versions")
        return
    output.print_table(render_changes.outdated_table(outdated), ())
    if changed is not None:
        output.say(render_changes.changed_line("migrated", changed))


def _bytes(text: str | None) -> int | None:
    from statebed.quantities import parse_bytes

    return None if text is None else parse_bytes(text, where="--memory")


def _types(options: list[str]) -> dict[tuple[str, str], object]:
    from statebed.maintain import load_type

    types: dict[tuple[str, str], object] = {}
    for option in options:
        place, equals, named = option.partition("=")
        operator, dot, table = place.partition(".")
        if not (equals and dot and operator and table and ":" in named):
            raise typer.BadParameter(f"{option!r} is not OPERATOR.TABLE=module:Class", param_hint="--type")
        types[operator, table] = load_type(named)
    return types
