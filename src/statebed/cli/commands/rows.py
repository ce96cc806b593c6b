"""The commands that look at rows: state, get, diff, export."""

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from statebed.cli import completion
from statebed.cli.options import DEFAULT_STATE, Epoch, Job, Json, Operator, OptionalJob, Savepoint, State, Table

if TYPE_CHECKING:
    from statebed.cli.table_request import TableRequest

ROWS = 20
"""How many rows are shown unless told otherwise."""
NOTHING_FOUND = 3
"""Exit code of `get` when no table has the key."""

app = typer.Typer()


class Format(enum.StrEnum):
    """How rows are printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


Where = Annotated[str | None, typer.Option("--where", "-w", help="Only rows for which this SQL condition holds.")]
Keys = Annotated[
    list[str] | None,
    typer.Option("--key", "-k", help="Only this key; several times: several keys, or column=value for each column."),
]
Start = Annotated[str | None, typer.Option("--from", help="Only rows of this time or later, e.g. '2026-01-31 12:00'.")]
End = Annotated[str | None, typer.Option("--to", help="Only rows before this time.")]
Columns = Annotated[list[str] | None, typer.Option("--columns", "-c", help="Only these columns, comma-separated.")]
Results = Annotated[
    bool, typer.Option("--results", help="Finished results of aggregates and top-n: `mean` holds the mean.")
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=0, help="At most so many rows; 0: all.")]


def _question(
    state: str, job: str | None, *, key: list[str] | None, columns: list[str] | None = None, **more: Any
) -> "TableRequest":
    """What the options ask of a table."""
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
    sql: Annotated[str | None, typer.Option("--sql", help="A query over `state` and every operator.table.")] = None,
    limit: Limit = ROWS,
    count: Annotated[bool, typer.Option("--count", help="Only how many rows there are.")] = False,
    scan: Annotated[bool, typer.Option("--scan", help="Only what the answer takes: files, row groups, bytes.")] = False,
    internal: Annotated[bool, typer.Option("--internal", help="Also the columns _key_hash and _seq.")] = False,
    results: Results = False,
    format: Annotated[Format, typer.Option("--format", help="How rows are printed.")] = Format.TABLE,  # noqa: A002 - the option's name
    json: Json = False,
) -> None:
    """Show rows of state, by key, time, condition or SQL, at any retained epoch."""
    if (count or scan) and (sql or count == scan):
        raise typer.BadParameter("--sql, --count and --scan each give another answer", param_hint="--count")
    from statebed.cli import state_rows

    asked = {"operator": operator, "table": table, "epoch": epoch, "savepoint": savepoint}
    narrowed = {"where": where, "start": start, "end": end}
    question = _question(state, job, key=key, columns=columns, **asked, **narrowed, internal=internal, results=results)
    shown = state_rows.Shown(Format.JSON if json else format, limit or None)
    if sql:
        state_rows.print_query(question, sql, shown)
    elif count:
        state_rows.print_count(question, shown)
    elif scan:
        state_rows.print_scan(question, shown)
    else:
        state_rows.print_rows(question, shown)


@app.command()
def get(
    state: State,
    job: Job,
    key: Annotated[list[str], typer.Argument(help="The key: its value, or one for each key column (or column=value).")],
    *,
    operator: Operator = None,
    table: Table = None,
    epoch: Epoch = None,
    savepoint: Savepoint = None,
    results: Results = False,
    limit: Limit = ROWS,
    json: Json = False,
) -> None:
    """Look one key up in every table of every operator that has such keys."""
    from statebed.cli import key_lookup

    asked: dict[str, Any] = {"operator": operator, "table": table, "epoch": epoch, "savepoint": savepoint}
    question = _question(state, job, key=key, **asked, results=results)
    found = key_lookup.print_key(question, limit=limit or None, as_json=json)
    if not found:
        raise typer.Exit(NOTHING_FOUND)


@app.command()
def diff(
    state: State,
    job: Job,
    since: Annotated[
        str,
        typer.Argument(help="The epoch before, or a savepoint.", autocompletion=completion.epochs_and_savepoints),
    ],
    until: Annotated[
        str | None,
        typer.Argument(
            help="The one after; the newest epoch if left out.", autocompletion=completion.epochs_and_savepoints
        ),
    ] = None,
    *,
    operator: Operator = None,
    table: Table = None,
    rows: Annotated[bool, typer.Option("--rows", help="The rows that changed; so with --operator or --table.")] = False,
    limit: Limit = ROWS,
    format: Annotated[Format, typer.Option("--format", help="How rows are printed.")] = Format.TABLE,  # noqa: A002 - the option's name
    json: Json = False,
) -> None:
    """Show what changed between two epochs: in the whole job, or row by row in one table."""
    from statebed.cli import epoch_diff, state_rows

    shown = state_rows.Shown(Format.JSON if json else format, limit or None)
    if rows or operator or table:
        epoch_diff.print_rows(state, job, since=since, until=until, operator=operator, table=table, shown=shown)
    else:
        epoch_diff.print_job(state, job, since=since, until=until, as_json=json)


class FileFormat(enum.StrEnum):
    """What is written."""

    PARQUET = "parquet"
    CSV = "csv"


@app.command()
def export(
    state: State,
    job: Job,
    output: Annotated[Path, typer.Argument(help="A new file (.parquet, .csv), or a new folder: one file per table.")],
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
    format: Annotated[  # noqa: A002 - the option's name
        FileFormat | None, typer.Option("--format", help="Parquet unless OUTPUT ends in .csv.")
    ] = None,
    json: Json = False,
) -> None:
    """Save rows of state to Parquet or CSV, as a stream: state may be larger than memory."""
    from statebed.cli import export

    asked = {"operator": operator, "table": table, "epoch": epoch, "savepoint": savepoint}
    narrowed = {"where": where, "start": start, "end": end}
    question = _question(state, job, key=key, columns=columns, **asked, **narrowed, results=results)
    export.export(question, output, suffix=f".{format}" if format else None, as_json=json)
