"""Tables in files: folders that are read as streams, and tables that are written exactly once."""

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from statebed.queries.text.connectors import Connector, SinkCall, SqlTableRequest, TableOption

FORMATS = ("parquet", "csv", "json", "orc", "text")
_READ_OPTIONS = {
    "max-files-per-trigger": "maxFilesPerTrigger",
    "max-bytes-per-trigger": "maxBytesPerTrigger",
    "latest-first": "latestFirst",
    "file-name-only": "fileNameOnly",
    "max-file-age": "maxFileAge",
    "clean-source": "cleanSource",
    "archive-dir": "sourceArchiveDir",
    "path-glob-filter": "pathGlobFilter",
    "recursive": "recursiveFileLookup",
    "header": "header",
    "delimiter": "sep",
    "timestamp-format": "timestampFormat",
    "multi-line": "multiLine",
    "null-value": "nullValue",
    "mode": "mode",
}
"""Our options by those of Spark's file sources."""
_OPTIONS = {
    "path": TableOption(is_required=True, example="events"),
    "format": TableOption(choices=FORMATS),
    **{name: TableOption() for name in _READ_OPTIONS},
    "max-files-per-trigger": TableOption(int, example="1"),
    "header": TableOption(bool, example="true"),
    "recursive": TableOption(bool, example="true"),
}


def _format_of(request: SqlTableRequest, default: str | None) -> str:
    result: str | None = request.options.get("format", default)
    if result is None:
        raise request.mistake(
            "the connector 'filesystem' needs the option 'format'",
            "connector",
            fix=f"add format = 'parquet'; the formats are {', '.join(FORMATS)}",
        )
    return result


def _read(request: SqlTableRequest, default: str | None) -> DataFrame:
    kind, path = _format_of(request, default), request.options["path"]
    reader = request.session.readStream.format(kind)
    schema = request.physical_schema
    if schema is None and kind != "text":
        if kind != "parquet":
            raise request.source.mistake(
                f"the table {request.name} declares no columns, and {kind} files have no types",
                request.statement.name.span,
                fix=f"declare them: CREATE TABLE {request.name} (a BIGINT, b STRING) WITH (...)",
            )
        try:
            schema = request.session.read.parquet(path).schema
        except PySparkException as error:
            raise request.mistake(
                f"the table {request.name} declares no columns, and there are no Parquet files in {path!r} to take "
                "them from",
                "path",
                fix=f"declare them: CREATE TABLE {request.name} (a BIGINT, b STRING) WITH (...)",
            ) from error
    if schema is not None:
        reader = reader.schema(schema)
    for name, spark in _READ_OPTIONS.items():
        if name in request.options:
            reader = reader.option(spark, request.options[name])
    try:
        return reader.load(path)
    except PySparkException as error:
        raise request.mistake(
            f"{path!r} cannot be read as {kind}: {str(error).splitlines()[0]}", "path", fix="correct the path"
        ) from error


def _write(request: SqlTableRequest, default: str | None) -> SinkCall:
    kind = _format_of(request, default)
    for name in _READ_OPTIONS:
        if name in request.options and (kind == "parquet" or name not in {"header", "delimiter"}):
            raise request.source.mistake(
                f"{name} is an option for reading, but the table {request.name} is written",
                request.statement.option_names[name],
                fix="remove it",
            )
    spark = {_READ_OPTIONS[name]: value for name, value in request.options.items() if name in _READ_OPTIONS}
    return SinkCall(kind, request.options["path"], {} if kind == "parquet" else spark)


FILESYSTEM = Connector(_OPTIONS, lambda request: _read(request, None), lambda request: _write(request, "parquet"))
PARQUET = Connector(
    {name: option for name, option in _OPTIONS.items() if name != "format"},
    lambda request: _read(request, "parquet"),
    lambda request: _write(request, "parquet"),
)
