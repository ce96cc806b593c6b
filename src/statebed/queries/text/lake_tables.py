"""Delta and Iceberg tables in SQL text: both are written exactly once, and a Delta table can be read as a stream."""

from pyspark.sql import DataFrame

from statebed.queries.text.connectors import Connector, SinkCall, SqlTableRequest, TableOption
from statebed.spark.api.delta_source import NAME as DELTA_SOURCE
from statebed.spark.api.delta_source import DeltaSource

_PATH = TableOption(is_required=True, example="out")
_LAYOUT = {
    "partition_by": TableOption(example="day, country"),
    "sort_by": TableOption(example="user"),
    "compact": TableOption(bool, example="true"),
    "epoch_column": TableOption(),
}
_STORAGE = "storage."


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


def _read_delta(request: SqlTableRequest) -> DataFrame:
    for name in request.options:
        if name in _LAYOUT:
            raise request.source.mistake(
                f"{name} is an option for writing, but the table {request.name} is read",
                request.statement.option_names[name],
                fix="remove it",
            )
    request.session.dataSource.register(DeltaSource)
    options = {f"storage.{name}": value for name, value in _storage(request).items()}
    return request.session.readStream.format(DELTA_SOURCE).options(**options).load(request.options["path"])


def _write_delta(request: SqlTableRequest) -> SinkCall:
    options = _layout(request)
    if storage := _storage(request):
        options["storage_options"] = storage
    return SinkCall("delta", request.options["path"], options, takes_key=True)


def _write_iceberg(request: SqlTableRequest) -> SinkCall:
    options = _layout(request)
    catalog = {
        name.removeprefix("catalog."): value for name, value in request.options.items() if name.startswith("catalog.")
    }
    if catalog:
        options["catalog"] = catalog
    if "table" in request.options:
        options["table"] = request.options["table"]
    return SinkCall("iceberg", request.options.get("path"), options, takes_key=True)


DELTA = Connector({"path": _PATH, **_LAYOUT}, _read_delta, _write_delta, prefixes=(_STORAGE,))
ICEBERG = Connector(
    {"path": TableOption(example="warehouse"), "table": TableOption(example="sales.minutes"), **_LAYOUT},
    write=_write_iceberg,
    prefixes=("catalog.",),
)
