"""All connectors by name. A new one is an entry here."""

from collections.abc import Mapping

from statebed.queries.text.connectors import Connector, SinkCall, SqlTableRequest, TableOption
from statebed.queries.text.file_tables import FILESYSTEM, PARQUET
from statebed.queries.text.generated_tables import DATAGEN
from statebed.queries.text.kafka_tables import KAFKA
from statebed.queries.text.lake_tables import DELTA, ICEBERG
from statebed.sinks.console import DEFAULT_ROWS


def _postgres(request: SqlTableRequest) -> SinkCall:
    options = {"table": request.name, **request.options}
    return SinkCall("postgres", None, options, takes_key=True)


def _sqlite(request: SqlTableRequest) -> SinkCall:
    options = {"table": request.name, **request.options}
    return SinkCall("sqlite", str(options.pop("path")), options, takes_key=True)


def _debezium(request: SqlTableRequest) -> SinkCall:
    options = dict(request.options)
    return SinkCall("debezium", str(options.pop("path")), options, takes_key=True)


def _print(request: SqlTableRequest) -> SinkCall:
    return SinkCall("console", None, {"rows": request.options.get("rows", DEFAULT_ROWS)})


def _blackhole(request: SqlTableRequest) -> SinkCall:  # noqa: ARG001 - the shape of a connector
    return SinkCall(_forget)


def _forget(rows: object, epoch: int) -> None:
    """Do nothing with the rows of an epoch."""


_TABLE = TableOption(example="minutes")
_PATH = TableOption(is_required=True, example="out")
CONNECTORS: Mapping[str, Connector] = {
    "filesystem": FILESYSTEM,
    "parquet": PARQUET,
    "kafka": KAFKA,
    "delta": DELTA,
    "iceberg": ICEBERG,
    "datagen": DATAGEN,
    "postgres": Connector(
        {
            "dsn": TableOption(example="host=db.example dbname=results"),
            "password": TableOption(),
            "table": _TABLE,
            "epoch_column": TableOption(),
            "timeout": TableOption(example="5 minutes"),
        },
        write=_postgres,
    ),
    "sqlite": Connector(
        {"path": _PATH, "table": _TABLE, "epoch_column": TableOption(), "timeout": TableOption(example="5 minutes")},
        write=_sqlite,
    ),
    "debezium": Connector({"path": _PATH, "snapshot": TableOption(bool, example="true")}, write=_debezium),
    "print": Connector({"rows": TableOption(int, example="20")}, write=_print),
    "blackhole": Connector({}, write=_blackhole),
}
