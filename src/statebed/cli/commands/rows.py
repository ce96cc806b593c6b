"""Commands that show rows: state, get, diff, export."""

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from statebed.cli import completion
from statebed.cli.options import DEFAULT_STATE, Epoch, Job, Json, Operator, OptionalJob, Savepoint, State, Table

if TYPE_CHECKING:
    from statebed.cli.table_request import TableRequest

ROWS = 20
"""Number of rows shown by default."""
NOTHING_FOUND = 3
"""Exit code of `get` if no table has the key."""

app = typer.Typer()


class Format(enum.StrEnum):
    """Output format of rows."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


Where = Annotated[str | None, typer.Option("--where", "-w", help="Only rows for which this SQL condition holds.")]
Keys = Annotated[
    list[str] | None,
    typer.Option(
        "--key", "-k", help="Only this key. Repeat it for several keys, or to give column=value for each key column."
    ),
]
Start = Annotated[str | None, typer.Option("--from", help="Only rows at or after this time, e.g. '2026-01-31 12:00'.")]
End = Annotated[str | None, typer.Option("--to", help="Only rows before this time.")]
Columns = Annotated[list[str] | None, typer.Option("--columns", "-c", help="Only these columns, comma-separated.")]
Results = Annotated[
    bool, typer.Option("--results", help="Show final results of aggregates and top-n: `mean` holds the mean.")
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=0, help="Maximum number of rows; 0 shows all.")]


def _request(
    state: str, job: str | None, *, key: list[str] | None, columns: list[str] | None = None, **more: Any
) -> "TableRequest":
    """Build the table request that the options describe."""
    if more["epoch"] is not None and more["savepoint"] is not None:
        raise typer.BadParameter("an epoch is given, too", param_hint="--savepoint")
    from statebed.cli.table_request import TableRequest

    return TableRequest(state, job, keys=tuple(key or ()), columns=tuple(columns or ()), **more)


@app.command()
def state(
    state: State = DEFAULT_STATE,
    job: OptionalJob = None,
    *,
    operator: Operator = None,
    table: Table = None,
    epoch: Epoch = None,
    savepoint: Savepoint = None,
    key: Keys = None,
    where: Where = None,
    start: Start = None,
    end: End = None,
    columns: Columns = None,
    sql: Annotated[str | None, typer.Option("--sql", help="SQL query over `state` and every operator.table.")] = None,
    limit: Limit = ROWS,
    count: Annotated[bool, typer.Option("--count", help="Only print the number of rows.")] = False,
    scan: Annotated[
        bool, typer.Option("--scan", help="Only print what the scan reads: files, row groups, bytes.")
    ] = False,
    internal: Annotated[bool, typer.Option("--internal", help="Also show the columns _key_hash and _seq.")] = False,
    results: Results = False,
    output_format: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.TABLE,
    json: Json = False,
) -> None:
    """Show rows of state, by key, time, condition or SQL, at any retained epoch."""
    if (count or scan) and (sql or count == scan):
        raise typer.BadParameter("--sql, --count and --scan each give another answer", param_hint="--count")
    from statebed.cli import state_rows

    selection = {"operator": operator, "table": table, "epoch": epoch, "savepoint": savepoint}
    narrowed = {"where": where, "start": start, "end": end}
    request = _request(
        state, job, key=key, columns=columns, **selection, **narrowed, internal=internal, results=results
    )
    shown = state_rows.OutputOptions(Format.JSON if json else output_format, limit or None)
    if sql:
        state_rows.print_query(request, sql, shown)
    elif count:
        state_rows.print_count(request, shown)
    elif scan:
        state_rows.print_scan(request, shown)
    else:
        state_rows.print_rows(request, shown)


@app.command()
def get(
    state: State,
    job: Job,
    key: Annotated[list[str], typer.Argument(help="Key to look up: one value per key column (or column=value).")],
    *,
    operator: Operator = None,
    table: Table = None,
    epoch: Epoch = None,
    savepoint: Savepoint = None,
    results: Results = False,
    limit: Limit = ROWS,
    json: Json = False,
) -> None:
    """Look up a key in every table whose keys have that form."""
    from statebed.cli import key_lookup

    selection: dict[str, Any] = {"operator": operator, "table": table, "epoch": epoch, "savepoint": savepoint}
    request = _request(state, job, key=key, **selection, results=results)
    has_rows = key_lookup.print_key(request, limit=limit or None, as_json=json)
    if not has_rows:
        raise typer.Exit(NOTHING_FOUND)


@app.command()
def diff(
    state: State,
    job: Job,
    since: Annotated[
        str,
        typer.Argument(help="Earlier epoch or savepoint.", autocompletion=completion.epochs_and_savepoints),
    ],
    until: Annotated[
        str | None,
        typer.Argument(
            help="Later epoch or savepoint; default: the newest epoch.", autocompletion=completion.epochs_and_savepoints
        ),
    ] = None,
    *,
    operator: Operator = None,
    table: Table = None,
    rows: Annotated[
        bool, typer.Option("--rows", help="Show the changed rows; implied by --operator and --table.")
    ] = False,
    limit: Limit = ROWS,
    follow: Annotated[
        bool, typer.Option("--follow", help="Then show the changes of each new epoch, up to UNTIL if it is given.")
    ] = False,
    every: Annotated[float, typer.Option("--every", min=0.1, help="Seconds between checks for new epochs.")] = 1.0,
    output_format: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.TABLE,
    json: Json = False,
) -> None:
    """Show what changed between two epochs: for the whole job, or row by row for one table.

    With --follow, keep showing the changed rows of a table as epochs are committed, until Ctrl-C.
    """
    from statebed.cli import epoch_diff, state_rows

    shown = state_rows.OutputOptions(Format.JSON if json else output_format, limit or None)
    if follow:
        epoch_diff.follow_rows(
            state, job, since=since, until=until, operator=operator, table=table, shown=shown, every_seconds=every
        )
    elif rows or operator or table:
        epoch_diff.print_rows(state, job, since=since, until=until, operator=operator, table=table, shown=shown)
    else:
        epoch_diff.print_job(state, job, since=since, until=until, as_json=json)


class FileFormat(enum.StrEnum):
    """File format of an export."""

    PARQUET = "parquet"
    CSV = "csv"


@app.command()
def export(
    state: State,
    job: Job,
    output: Annotated[Path, typer.Argument(help="New file (.parquet, .csv), or new folder with one file per table.")],
    *,
    operator: Operator = None,
    table: Table = None,
    epoch: Epoch = None,
    savepoint: Savepoint = None,
    key: Keys = None,
    where: Where = None,
    start: Start = None,
    end: End = None,
    columns: Columns = None,
    results: Results = False,
    file_format: Annotated[
        FileFormat | None,
        typer.Option("--format", help="File format; default: Parquet, or CSV if OUTPUT ends in .csv."),
    ] = None,
    json: Json = False,
) -> None:
    """Export rows of state to Parquet or CSV. Rows are streamed, so state may be larger than memory."""
    from statebed.cli import export

    selection = {"operator": operator, "table": table, "epoch": epoch, "savepoint": savepoint}
    narrowed = {"where": where, "start": start, "end": end}
    request = _request(state, job, key=key, columns=columns, **selection, **narrowed, results=results)
    export.export(request, output, suffix=f".{file_format}" if file_format else None, as_json=json)
