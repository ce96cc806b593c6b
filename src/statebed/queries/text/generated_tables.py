"""Generated tables: connector = 'datagen'.

Row n of a table is a function of its seed and of n alone, so that a replay gives the same rows. Columns are filled by
their types; `fields.NAME.*` options choose ranges, sequences and values. Columns of type TIMESTAMP advance by one
second every `rows-per-second` rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    StringType,
    TimestampType,
)

from statebed.errors import InputError
from statebed.queries.text.connectors import Connector, SqlTableRequest, TableOption
from statebed.queries.text.spark_errors import nearest

_START_US = 1_767_225_600_000_000
"""2026-01-01 00:00 UTC."""
_MICROSECONDS = 1_000_000
_LARGEST = {"tinyint": 127, "smallint": 32_767, "int": 1_000_000, "bigint": 1_000_000}
_RANDOM, _SEQUENCE = "random", "sequence"
"""Kinds of columns."""
_FIELD_OPTIONS = ("kind", "min", "max", "start", "end", "length", "values", "null-rate")
_OPTIONS = {
    "rows-per-second": TableOption(int, example="1000"),
    "rows-per-batch": TableOption(int, example="1000"),
    "number-of-rows": TableOption(int, example="10000"),
    "seed": TableOption(int, example="7"),
    "partitions": TableOption(int, example="2"),
}


def _read(request: SqlTableRequest) -> DataFrame:
    schema = request.physical_schema
    if schema is None:
        raise request.source.mistake(
            f"the table {request.name} declares no columns",
            request.statement.name.span,
            fix=f"declare them: CREATE TABLE {request.name} (id BIGINT, ts TIMESTAMP, ...) WITH (...)",
        )
    for name in ("rows-per-second", "rows-per-batch", "number-of-rows", "partitions"):
        if request.options.get(name, 1) < 1:
            raise request.mistake(f"{name} must be at least 1", name, fix=f"write {name} = '1000'")
    fields = _fields(request, schema.names)
    per_second = int(request.options.get("rows-per-second", 10))
    frame = (
        request.session.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", int(request.options.get("rows-per-batch", per_second)))
        .option("numPartitions", int(request.options.get("partitions", 1)))
        .load()
    )
    row = F.col("value")
    if "number-of-rows" in request.options:
        frame = frame.where(row < int(request.options["number-of-rows"]))
    seed = int(request.options.get("seed", 0))
    columns = [
        _Column(request, field.name, field.dataType, fields.get(field.name, {}), seed, per_second)
        for field in schema.fields
    ]
    for column in columns:
        if column.count is not None:
            frame = frame.where(row < column.count)
    return frame.select(*(column.value.alias(column.name) for column in columns))


def _fields(request: SqlTableRequest, names: list[str]) -> dict[str, dict[str, str]]:
    """Return the options of each column."""
    result: dict[str, dict[str, str]] = {}
    for option, value in request.options.items():
        if not option.startswith("fields."):
            continue
        name, _, part = option.removeprefix("fields.").rpartition(".")
        place = request.statement.option_names[option]
        if name not in names:
            raise request.source.mistake(
                f"there is no column {name!r}", place, fix=nearest(name, names, what="columns")
            )
        if part not in _FIELD_OPTIONS:
            raise request.source.mistake(
                f"a column of 'datagen' has no option {part!r}",
                place,
                fix=nearest(part, _FIELD_OPTIONS, what="options of a column"),
            )
        result.setdefault(name, {})[part] = value
    return result


@dataclass(frozen=True)
class _Column:
    """A column whose value in row n depends on the seed, its name and n alone."""

    request: SqlTableRequest
    name: str
    type: DataType
    options: Mapping[str, str]
    seed: int
    per_second: int

    @property
    def value(self) -> Column:
        value = self._plain.cast(self.type)
        rate = self._number("null-rate", 0.0)
        if not 0 <= rate <= 1:
            raise self._mistake("null-rate", f"must be between 0 and 1, got {rate:g}", fix="write a share such as 0.1")
        if rate == 0:
            return value
        is_null = F.pmod(self._chance("null"), F.lit(_MICROSECONDS)) < int(rate * _MICROSECONDS)
        return F.when(is_null, F.lit(None)).otherwise(value)

    @property
    def count(self) -> int | None:
        """Number of rows after which a sequence ends, and the table with it; None for other columns."""
        if "end" not in self.options:
            return None
        if not self._is_sequence:
            raise self._mistake(
                "end", "ends a sequence, but the column is random", fix=f"add fields.{self.name}.kind = 'sequence'"
            )
        return int(self._number("end", 0)) - int(self._number("start", 0)) + 1

    @property
    def _is_sequence(self) -> bool:
        kind = self.options.get("kind", _RANDOM)
        if kind not in {_RANDOM, _SEQUENCE}:
            raise self._mistake("kind", f"must be {_RANDOM!r} or {_SEQUENCE!r}, got {kind!r}", fix="write one of them")
        if kind == _SEQUENCE and not isinstance(self.type, IntegralType | StringType):
            raise self._mistake(
                "kind",
                f"is {_SEQUENCE!r}, but the column has the type {self.type.simpleString()}",
                fix="number rows in a column of type BIGINT, INT or STRING",
            )
        return kind == _SEQUENCE

    @property
    def _plain(self) -> Column:
        row, chance, kind = F.col("value"), self._chance("value"), self.type
        if "values" in self.options:
            values = [entry.strip() for entry in self.options["values"].split(",")]
            return F.element_at(F.array(*map(F.lit, values)), (F.pmod(chance, F.lit(len(values))) + 1).cast("int"))
        if self._is_sequence:
            return row + int(self._number("start", 0))
        for types, build in (
            (IntegralType, self._integer),
            (DoubleType | FloatType | DecimalType, self._fraction),
            (BooleanType, lambda: F.pmod(chance, F.lit(2)) == 0),
            (TimestampType, lambda: F.timestamp_micros(F.lit(_START_US) + self._elapsed_us(row))),
            (DateType, lambda: F.date_add(F.to_date(F.timestamp_micros(F.lit(_START_US))), self._days(chance))),
            (StringType, lambda: F.substring(F.md5(chance.cast("string")), 1, int(self._number("length", 8)))),
        ):
            if isinstance(kind, types):
                return build()
        raise self.request.source.mistake(
            f"'datagen' cannot fill the column {self.name!r} of type {kind.simpleString()}",
            self.request.span_of_type(self.name),
            fix="use numbers, BOOLEAN, STRING, DATE and TIMESTAMP, and compute other columns in a view",
        )

    def _chance(self, purpose: str) -> Column:
        """Return a hash of the row that differs from column to column."""
        return F.xxhash64(F.col("value"), F.lit(self.seed), F.lit(self.name), F.lit(purpose))

    def _elapsed_us(self, row: Column) -> Column:
        return F.floor(row * _MICROSECONDS / self.per_second).cast("long")

    def _days(self, chance: Column) -> Column:
        return F.pmod(chance, F.lit(365)).cast("int")

    def _integer(self) -> Column:
        lowest = int(self._number("min", 0))
        highest = int(self._number("max", max(lowest, _LARGEST[self.type.simpleString()])))
        self._check_bounds(lowest, highest)
        return F.pmod(self._chance("value"), F.lit(highest - lowest + 1)) + lowest

    def _fraction(self) -> Column:
        lowest = self._number("min", 0.0)
        highest = self._number("max", max(lowest, 1000.0))
        self._check_bounds(lowest, highest)
        share = F.pmod(self._chance("value"), F.lit(1 << 40)) / float(1 << 40)
        return share * (highest - lowest) + lowest

    def _number(self, option: str, default: float) -> float:
        text = self.options.get(option)
        if text is None:
            return default
        try:
            return float(text)
        except ValueError:
            fix = f"write fields.{self.name}.{option} = '10'"
            raise self._mistake(option, f"must be a number, got {text!r}", fix=fix) from None

    def _check_bounds(self, lowest: float, highest: float) -> None:
        if highest < lowest:
            option = "max" if "max" in self.options else "min"
            raise self._mistake(
                option,
                f"leaves no values: the least is {lowest:g}, the greatest {highest:g}",
                fix="exchange min and max",
            )

    def _mistake(self, option: str, what: str, *, fix: str) -> InputError:
        full = f"fields.{self.name}.{option}"
        return self.request.mistake(f"{full} {what}", full, fix=fix)


DATAGEN = Connector(
    _OPTIONS,
    read=_read,
    prefixes=("fields.",),
    options_by_column=tuple(f"fields.*.{option}" for option in _FIELD_OPTIONS),
)
