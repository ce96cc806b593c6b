"""`statebed state`: prints the rows of a table, their number, what a scan of them reads, or the result of a query."""

import dataclasses

import pyarrow as pa

from statebed.cli import output, row_output, sql
from statebed.cli.pinned_epoch import PinnedEpoch, read_at
from statebed.cli.table_request import TableRequest
from statebed.inspect import StateTable
from statebed.present import units


@dataclasses.dataclass(frozen=True)
class OutputOptions:
    """Settings of the output of a result."""

    format: str
    """Output format: table, json or csv."""
    limit: int | None


def print_rows(request: TableRequest, shown: OutputOptions) -> None:
    """Print the rows of a table."""
    table = request.read()
    if shown.format == "csv":
        row_output.print_csv(row_output.first(table.to_batches(), shown.limit), table.schema)
    elif shown.format == "json":
        row_output.print_json(row_output.first(table.to_batches(), shown.limit), head_of(table))
    else:
        row_output.print_table(
            table.to_batches(), table.schema, title=title_of(table), keys=table.key_columns, limit=shown.limit
        )


def print_count(request: TableRequest, shown: OutputOptions) -> None:
    """Print the number of rows."""
    table = request.read()
    count = table.count()
    if shown.format == "json":
        output.print_json({**head_of(table), "count": count})
    else:
        output.say(str(count))


def print_scan(request: TableRequest, shown: OutputOptions) -> None:
    """Print what a scan of the rows reads."""
    table = request.read()
    scan = table.scan()
    if shown.format == "json":
        output.print_json({**head_of(table), "files": [dataclasses.asdict(file) for file in scan.files]})
        return
    shown_files = output.table(
        f"scan of {title_of(table)}",
        ["level", "subtask", "row groups read", "of", "bytes read", "of", "less because of", "path"],
        [
            (
                file.level,
                file.subtask,
                len(file.row_groups_read),
                file.row_groups,
                units.size(file.bytes_read),
                units.size(file.bytes),
                file.why or units.NOTHING,
                file.path,
            )
            for file in scan.files
        ],
        right=["level", "subtask", "row groups read", "of", "bytes read"],
    )
    output.print_table(shown_files, (), expendable=("subtask", "level"))
    everything = scan.bytes_read + scan.bytes_skipped
    output.say(
        f"{scan.files_read} of {len(scan.files)} files, {scan.row_groups_read} of "
        f"{scan.row_groups_read + scan.row_groups_skipped} row groups, {units.size(scan.bytes_read)} of "
        f"{units.size(everything)} are read"
    )


def print_query(request: TableRequest, text: str, shown: OutputOptions) -> None:
    """Print the result of an SQL query over the state of one epoch."""
    read_at(
        request.state,
        request.job,
        epoch=request.epoch,
        savepoint=request.savepoint,
        read=lambda moment: _print_query(moment, request, text, shown),
    )


def _print_query(moment: PinnedEpoch, request: TableRequest, text: str, shown: OutputOptions) -> None:
    chosen = _chosen(moment, request)
    with sql.answered(text, chosen=chosen, moment=moment, results=request.results) as answer:
        if shown.format == "csv":
            row_output.print_csv(row_output.first(answer, shown.limit), answer.schema)
        elif shown.format == "json":
            head = {"job": moment.job, "epoch": moment.record.epoch, "columns": columns_of(answer.schema)}
            row_output.print_json(row_output.first(answer, shown.limit), head)
        else:
            title = f"{moment.job} at epoch {moment.record.epoch}"
            row_output.print_table(answer, answer.schema, title=title, keys=(), limit=shown.limit)


def _chosen(moment: PinnedEpoch, request: TableRequest) -> StateTable | None:
    """Return the table to call `state`: the requested one, or the only one. Return None if there are several."""
    tables = moment.only(request.operator, request.table).tables
    if len(tables) > 1:
        return None
    operator, table = tables[0]
    epoch = moment.record.epoch if moment.savepoint is None else None
    return dataclasses.replace(request, operator=operator, table=table, epoch=epoch).read()


def head_of(table: StateTable) -> dict[str, object]:
    """Return the identity of the table as fields of a JSON document."""
    return {
        "job": table.job,
        "operator": table.operator,
        "table": table.table,
        "kind": table.kind,
        "results": table.finished,
        "epoch": table.epoch,
        "savepoint": table.savepoint,
        "keys": table.key_columns,
        "columns": columns_of(table.schema),
    }


def title_of(table: StateTable) -> str:
    """Return the title that identifies the table."""
    at = f"epoch {table.epoch}" if table.savepoint is None else f"savepoint {table.savepoint} (epoch {table.epoch})"
    what = "results" if table.finished else table.kind
    return f"{table.operator_name}.{table.table} of {table.job} at {at}, {what}"


def columns_of(schema: pa.Schema) -> list[dict[str, str]]:
    return [{"name": field.name, "type": str(field.type)} for field in schema]
