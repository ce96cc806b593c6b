"""`statebed show`: reads the requested details of one epoch and prints them."""

import dataclasses
import time

from rich.text import Text

from statebed.checkpoint.log import CheckpointLog
from statebed.cli import output
from statebed.cli.render_show import EXPENDABLE_COLUMNS, Epoch, render_epoch
from statebed.errors import EpochNotRetainedError, MissingFileError
from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.contents import Contents, Metadata, contents_of, metadata_of, subtasks_in
from statebed.inspect.figures import Figures, figures_of
from statebed.inspect.files import files_of, referrers
from statebed.inspect.given_up import given_up_lines
from statebed.inspect.jobs import open_log
from statebed.inspect.operator_names import OperatorNames
from statebed.inspect.records import newest, readable, record_at, savepoints_by_epoch, summarise
from statebed.inspect.run_states import newest_run, run_status
from statebed.inspect.savepoints import savepoint_record
from statebed.inspect.schemas import SchemaSummary, schemas_of
from statebed.inspect.sizes import size_of_folder
from statebed.inspect.sources import sources_of

ATTEMPTS = 3
"""Number of attempts to read the newest epoch, which clean-up may remove while it is read."""


@dataclasses.dataclass(frozen=True)
class EpochDetails:
    """Epoch to show, and the details to show of it."""

    epoch: int | None = None
    savepoint: str | None = None
    operator: str | None = None
    files: bool = False
    referrers: int = 0
    """Maximum number of epochs to search for references to the files."""
    schema: bool = False
    subtasks: bool = False


def look(state: str, job: str | None, wanted: EpochDetails) -> Epoch:
    """Read one epoch, possibly while the job runs."""
    log = open_log(state, job)
    for attempt in range(ATTEMPTS):
        record = _record(log, wanted)
        try:
            return _look(log, record, wanted)
        except MissingFileError as error:
            if wanted.savepoint is not None or log.exists(record.epoch):
                raise
            if wanted.epoch is not None or attempt == ATTEMPTS - 1:
                raise EpochNotRetainedError(
                    f"epoch {record.epoch} was removed by clean-up while it was read",
                    where=error.where,
                    fix="show a newer epoch",
                ) from error
    raise AssertionError("the last attempt returns or raises")


def document(shown: Epoch) -> dict[str, object]:
    """Return the epoch as a JSON document."""
    record = shown.record
    head: dict[str, object] = {
        "job": record.job_id,
        "written_by": record.written_by,
        "min_epoch": record.min_epoch,
        **output.with_times(shown.summary),
        **output.with_times(shown.contents),
        "figures": output.with_times(shown.figures),
    }
    if shown.sources:
        head["sources"] = [output.with_times(source) for source in shown.sources]
    if shown.report is not None:
        head["run_report"] = output.with_times(shown.report)
    if shown.files:
        head["files"] = [output.with_times(file) for file in shown.files]
    if shown.referrers:
        head["needed_by_complete"] = shown.referrers.complete
    if shown.subtasks:
        head["subtasks"] = [output.with_times(subtask) for subtask in shown.subtasks]
    if shown.schemas:
        head["schemas"] = [output.with_times(schema) for schema in shown.schemas]
    return head


def print_epoch(shown: Epoch) -> None:
    screen = output.console()
    for piece in render_epoch(shown):
        screen.print(piece if isinstance(piece, Text) else output.fit(piece, screen, expendable=EXPENDABLE_COLUMNS))


def _record(log: CheckpointLog, wanted: EpochDetails) -> pb.CheckpointMetadata:
    if wanted.savepoint is not None:
        return savepoint_record(log, newest(log), wanted.savepoint)
    return record_at(log, wanted.epoch)


def _look(log: CheckpointLog, record: pb.CheckpointMetadata, wanted: EpochDetails) -> Epoch:
    metadata = metadata_of(log, record)
    contents = contents_of(log, record, metadata)
    following = readable(log, record.epoch + 1)
    figures = figures_of(record, following)
    summary = summarise(
        record,
        held=size_of_folder(log, record.epoch),
        following=following,
        savepoints=savepoints_by_epoch(record).get(record.epoch, ()),
    )
    if wanted.operator is not None:
        where = f"{log.store.url}, epoch {record.epoch}"
        operator = OperatorNames.of(record).id_of(wanted.operator, where=where)
        contents, figures = _only(contents, figures, operator)
        metadata = {operator: metadata[operator]}
    holders = referrers(log, newest(log) or record, limit=wanted.referrers) if wanted.referrers else None
    files = [file for name, subtasks in metadata.items() for file in files_of(name, subtasks)] if wanted.files else []
    is_newest = wanted.epoch is None and wanted.savepoint is None
    status = run_status(log, record.run)
    return Epoch(
        record=record,
        sources=sources_of(record, status.heartbeat if is_newest else None),
        given_up=given_up_lines(log, record) if is_newest else (),
        report=newest_run(log, record, now_us=time.time_ns() // 1000, status=status) if is_newest else None,
        summary=summary,
        contents=contents,
        figures=figures,
        subtasks=subtasks_in(metadata) if wanted.subtasks else (),
        files=[holders.of(file) for file in files] if holders else files,
        referrers=holders,
        schemas=_schemas(record, metadata) if wanted.schema else (),
    )


def _schemas(record: pb.CheckpointMetadata, metadata: Metadata) -> list[SchemaSummary]:
    entries = {entry.operator_id: entry for entry in record.operators}
    return [schema for name, subtasks in metadata.items() for schema in schemas_of(entries[name], subtasks)]


def _only(contents: Contents, figures: Figures | None, operator: str) -> tuple[Contents, Figures | None]:
    """Reduce contents and figures to one operator."""
    narrowed = dataclasses.replace(
        contents,
        operators=tuple(entry for entry in contents.operators if entry.operator == operator),
        tables=tuple(table for table in contents.tables if table.operator == operator),
        sinks=tuple(sink for sink in contents.sinks if sink.operator == operator),
    )
    if figures is None:
        return narrowed, None
    return narrowed, dataclasses.replace(
        figures,
        tables=tuple(table for table in figures.tables if table.operator == operator),
        operators=tuple(entry for entry in figures.operators if entry.operator == operator),
    )
