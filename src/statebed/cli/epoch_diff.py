"""`statebed diff`: changes between two epochs, for a whole job or row by row for one table."""

import sys
import time

from statebed.checkpoint.log import CheckpointLog
from statebed.cli import output, row_output
from statebed.cli.output import table
from statebed.cli.state_rows import OutputOptions, columns_of
from statebed.format import checkpoint_pb2 as pb
from statebed.inspect import diff_state
from statebed.inspect.job_diff import JobDiff, TableChange, diff_job
from statebed.inspect.jobs import open_log
from statebed.inspect.operator_names import OperatorNames
from statebed.inspect.records import newest, record_at
from statebed.inspect.savepoints import savepoint_record
from statebed.present.units import NOTHING, instant, number, size

CHANGE = "change"


def print_job(state: str, job: str, *, since: str, until: str | None, as_json: bool) -> None:
    """Print the changes per operator and table."""
    log = open_log(state, job)
    diff = diff_job(log, _record(log, since), _record(log, until))
    if as_json:
        output.print_json(output.with_times(diff))
    else:
        _print_job(diff)


def print_rows(
    state: str,
    job: str,
    *,
    since: str,
    until: str | None,
    operator: str | None,
    table: str | None,
    shown: OutputOptions,
) -> None:
    """Print the changed rows of one table."""
    changes = diff_state(
        state,
        job=open_log(state, job).job_id,
        operator=operator,
        table=table,
        since=_epoch_or_savepoint(since),
        until=None if until is None else _epoch_or_savepoint(until),
    )
    if shown.format == "csv":
        row_output.print_csv(row_output.first(changes.to_batches(), shown.limit), changes.schema)
        return
    counts = changes.counts()
    if shown.format == "json":
        head = {
            "job": job,
            "operator": changes.operator,
            "table": changes.table,
            "since": changes.since,
            "until": changes.until,
            "keys": changes.key_columns,
            "columns": columns_of(changes.schema),
            "counts": counts,
        }
        row_output.print_json(row_output.first(changes.to_batches(), shown.limit), head)
        return
    row_output.print_table(
        changes.to_batches(),
        changes.schema,
        title=f"{changes.operator_name}.{changes.table} of {job} from epoch {changes.since} to {changes.until}",
        keys=[CHANGE, *changes.key_columns],
        limit=shown.limit,
    )
    inserted, updated, deleted = (number(counts.get(kind, 0)) for kind in ("insert", "update_after", "delete"))
    output.say(f"{inserted} inserted, {updated} updated, {deleted} deleted")


def follow_rows(
    state: str,
    job: str,
    *,
    since: str,
    until: str | None,
    operator: str | None,
    table: str | None,
    shown: OutputOptions,
    every_seconds: float,
) -> None:
    """Print the changed rows of one table whenever the log has a new record, up to `until` or for ever.

    An epoch that is cleaned up before its successor was shown ends this with an error: changes would be missing.
    """
    log = open_log(state, job)
    last = None if until is None else _record(log, until).epoch if not until.isdigit() else int(until)
    shown_until = since
    while True:
        newest_number = record_at(log, None).epoch
        wanted = newest_number if last is None else min(newest_number, last)
        if _record(log, shown_until).epoch < wanted:
            print_rows(state, job, since=shown_until, until=str(wanted), operator=operator, table=table, shown=shown)
            sys.stdout.flush()
            shown_until = str(wanted)
        if last is not None and wanted >= last:
            return
        time.sleep(every_seconds)


def _record(log: CheckpointLog, named: str | None) -> pb.CheckpointMetadata:
    if named is None:
        return record_at(log, None)
    epoch = _epoch_or_savepoint(named)
    return record_at(log, epoch) if isinstance(epoch, int) else savepoint_record(log, newest(log), epoch)


def _epoch_or_savepoint(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() else text


def _print_job(diff: JobDiff) -> None:
    names = OperatorNames(diff.operator_names)
    output.say(
        f"{diff.job} from epoch {diff.since} ({instant(diff.before_finish_time_us)} UTC) "
        f"to epoch {diff.until} ({instant(diff.after_finish_time_us)} UTC)"
    )
    operators = table(
        "operators",
        ["operator", "change", "subtasks", "watermark before (UTC)", "watermark after (UTC)"],
        [
            (
                names(operator.operator),
                operator.change,
                _from_to(operator.parallelism_before, operator.parallelism_after),
                instant(operator.before_watermark_us),
                instant(operator.after_watermark_us),
            )
            for operator in diff.operators
        ],
    )
    output.print_table(operators, ())
    tables = table(
        "tables, by their files",
        ["operator", "table", "change", "rows", "", "size", " ", "files added", "files removed", "tombstones"],
        [_table_row(change, names) for change in diff.tables],
        right=["rows", "", "size", " ", "files added", "files removed", "tombstones"],
    )
    output.print_table(tables, (), expendable=("tombstones",))
    output.say("pass --operator and --table to see the changed rows of one table")


def _table_row(change: TableChange, names: OperatorNames) -> tuple[object, ...]:
    growth = change.bytes_after - change.bytes_before
    return (
        names(change.operator),
        change.table,
        change.change,
        number(change.rows_after),
        f"({change.rows_after - change.rows_before:+,})",
        size(change.bytes_after),
        f"({'-' if growth < 0 else '+'}{size(abs(growth))})",
        change.files_added,
        change.files_removed,
        _from_to(change.tombstones_before, change.tombstones_after),
    )


def _from_to(before: int | None, after: int | None) -> str:
    if before == after:
        return NOTHING if after is None else str(after)
    return f"{NOTHING if before is None else before} → {NOTHING if after is None else after}"
