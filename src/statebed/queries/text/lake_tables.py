"""Delta and Iceberg tables in SQL text: both are written exactly once, and can be read as streams of appended rows."""

from collections.abc import Collection

from pyspark.sql import DataFrame

from statebed.queries.text.connectors import Connector, SinkCall, SqlTableRequest, TableOption
from statebed.spark.api.lake_frames import delta_frame, iceberg_frame
from statebed.spark.api.lake_source import ALL, LATEST

_PATH = TableOption(is_required=True, example="out")
_LAYOUT = {
    "partition_by": TableOption(example="day, country"),
    "sort_by": TableOption(example="user"),
    "compact": TableOption(bool, example="true"),
    "epoch_column": TableOption(),
}
_READING = {"starting": TableOption(example="latest")}
_STORAGE = "storage."
_CATALOG = "catalog."


def _storage(request: SqlTableRequest) -> dict[str, str]:
    return {name.removeprefix(_STORAGE): value for name, value in request.options.items() if name.startswith(_STORAGE)}


def _layout(request: SqlTableRequest) -> dict[str, object]:
    options = {name: value for name, value in request.options.items() if name in _LAYOUT}
    lists = {
        name: [column.strip() for column in str(options[name]).split(",")]
        for name in ("partition_by", "sort_by")
        if name in options
    }
    return options | lists


def _check_read(request: SqlTableRequest) -> None:
    _check_options(request, _LAYOUT, "an option for writing, but the table {name} is read")


def _check_written(request: SqlTableRequest) -> None:
    _check_options(request, _READING, "an option for reading, but the table {name} is written")


def _check_options(request: SqlTableRequest, other: Collection[str], what: str) -> None:
    """Raise InputError for an option that is for the other direction."""
    for option in request.options:
        if option in other:
            raise request.source.mistake(
                f"{option} is {what.format(name=request.name)}", request.statement.option_names[option], fix="remove it"
            )


def _starting(request: SqlTableRequest, *, version: str) -> str | int:
    text = str(request.options.get("starting", ALL))
    if text in {ALL, LATEST}:
        return text
    if not text.isdecimal():
        raise request.mistake(
            f"starting must be 'all', 'latest' or a {version}, got '{text}'", "starting", fix="starting = 'latest'"
        )
    return int(text)


def _read_delta(request: SqlTableRequest) -> DataFrame:
    _check_read(request)
    return delta_frame(
        request.session,
        request.options["path"],
        starting=_starting(request, version="version"),
        storage_options=_storage(request),
        where=f"table {request.name}",
    )


def _write_delta(request: SqlTableRequest) -> SinkCall:
    _check_written(request)
    options = _layout(request)
    if storage := _storage(request):
        options["storage_options"] = storage
    return SinkCall("delta", request.options["path"], options, takes_key=True)


def _catalog(request: SqlTableRequest) -> dict[str, str] | None:
    names = [name for name in request.options if name.startswith(_CATALOG)]
    return {name.removeprefix(_CATALOG): str(request.options[name]) for name in names} or None


def _read_iceberg(request: SqlTableRequest) -> DataFrame:
    _check_read(request)
    return iceberg_frame(
        request.session,
        request.options["table"],
        path=request.options.get("path"),
        catalog=_catalog(request),
        starting=_starting(request, version="snapshot"),
        where=f"table {request.name}",
    )


def _write_iceberg(request: SqlTableRequest) -> SinkCall:
    _check_written(request)
    options: dict[str, object] = {**_layout(request), "table": request.options["table"]}
    if catalog := _catalog(request):
        options["catalog"] = catalog
    return SinkCall("iceberg", request.options.get("path"), options, takes_key=True)


DELTA = Connector({"path": _PATH, **_READING, **_LAYOUT}, _read_delta, _write_delta, prefixes=(_STORAGE,))
ICEBERG = Connector(
    {
        "path": TableOption(example="warehouse"),
        "table": TableOption(is_required=True, example="sales.minutes"),
        **_READING,
        **_LAYOUT,
    },
    _read_iceberg,
    _write_iceberg,
    prefixes=(_CATALOG,),
)
