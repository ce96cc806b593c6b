"""Any batch format of Spark as a sink, by its name and options. It is at-least-once, because formats do not check for
epochs already written.

`{epoch}` in the path is replaced by the epoch number, so that `mode="overwrite"` rewrites the folder of a repeated
epoch; `epoch_column=` adds the number to the rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

from statebed.checkpoint import Publication
from statebed.errors import InputError, SinkError
from statebed.format.names import EPOCH_DIGITS
from statebed.sinks.base import BaseSink
from statebed.sinks.places import Holding, Place, real_place
from statebed.sinks.row_shape import RowShape, shaped_rows
from statebed.spark.java_classes import java_class

EPOCH = "{epoch}"
OVERWRITE = "overwrite"
MODES = ("append", OVERWRITE)
_OF_FILES = frozenset({"avro", "csv", "json", "orc", "text", "xml"})


@dataclass(frozen=True)
class FormatTarget:
    """Destination and options of a format."""

    format: str
    path: str | None
    mode: str
    partition_by: tuple[str, ...]
    options: Mapping[str, Any] = field(repr=False)
    """Options of the format; may contain secrets."""

    def save(self, frame: DataFrame, *, epoch: int) -> None:
        """Write the rows of an epoch."""
        writer = frame.write.format(self.format).mode(self.mode).options(**self.options)
        if self.partition_by:
            writer = writer.partitionBy(*self.partition_by)
        writer.save(None if self.path is None else self.path.replace(EPOCH, f"{epoch:0{EPOCH_DIGITS}d}"))


_PLACES = ("topic", "dbtable")
"""Options that name the destination of formats without a path."""


class FormatSink(BaseSink):
    """Writes each epoch with a batch format of Spark."""

    shares_target: ClassVar[bool] = True

    def __init__(
        self,
        *,
        sink_id: str,
        target: FormatTarget,
        shape: RowShape,
        to_frame: Callable[[pa.Table], DataFrame],
    ) -> None:
        super().__init__(sink_id)
        self.kind = f"format {target.format}"
        self._target = target
        if target.path is not None:
            overwrites = target.mode == OVERWRITE
            self.place = Place(target.path, Holding.OVERWRITTEN_FILES if overwrites else Holding.FILES)
        self._shape = shape
        self._to_frame = to_frame

    @property
    def target(self) -> str:
        """Path, topic or table; other options may contain secrets."""
        target = self._target
        if target.path is not None:
            return real_place(target.path)
        return str(next((target.options[name] for name in _PLACES if name in target.options), ""))

    @property
    def described(self) -> str:
        target = self._target
        return " ".join(filter(None, (f"Spark format {target.format},", target.mode, target.path)))

    def publish(self, publication: Publication) -> None:
        shaped = shaped_rows(publication, self._shape)
        if shaped is None:
            return
        try:
            self._target.save(self._to_frame(shaped), epoch=publication.epoch)
        except Exception as error:
            raise SinkError(
                f"Spark's format {self._target.format} of {self.label} failed with "
                f"{type(error).__name__}: {str(error).strip()}",
                where=f"epoch {publication.epoch}, {shaped.num_rows} rows",
                fix="see the message, then start the job again: the epoch is committed and is written first",
            ) from error


def format_target(
    format_name: str, *, path: str | None, options: Mapping[str, Any], columns: Sequence[str], where: str
) -> FormatTarget:
    """Parse the user's options, separating those of statebed from those of the format."""
    if path is None and format_name in _OF_FILES:
        raise InputError(
            f"the format {format_name!r} needs path=", where=where, fix=f"write({format_name!r}, path='out/{EPOCH}')"
        )
    left = dict(options)
    mode = left.pop("mode", MODES[0])
    partition_by = left.pop("partition_by", ())
    names = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    if mode not in MODES:
        raise InputError(
            f"mode={mode!r} would lose an epoch that is written again, or fail on it",
            where=where,
            fix="use mode='append', or mode='overwrite' with {epoch} in the path",
        )
    unknown = [name for name in names if name not in columns]
    if unknown:
        raise InputError(
            f"partition_by names {unknown}, but the columns are {list(columns)}",
            where=where,
            fix="use some of these columns",
        )
    for name, value in left.items():
        if not isinstance(value, str | int | float | bool):
            raise InputError(
                f"the option {name} must be text, a number or a boolean, got {value!r}",
                where=where,
                fix="pass one of these",
            )
    return FormatTarget(format_name, path, mode, names, left)


def check_format(session: SparkSession, name: str, *, known: Sequence[str], where: str) -> None:
    """Raise InputError if this Spark does not have the format."""
    conf = session._jsparkSession.sessionState().conf()  # noqa: SLF001
    sources = java_class(session, "org.apache.spark.sql.execution.datasources.DataSource")
    try:
        if sources.lookupDataSourceV2(name, conf).isDefined():
            return
        sources.lookupDataSource(name, conf)
    except Py4JError as error:
        raise InputError(
            f"there is no sink {name!r}, and Spark has no format of that name",
            where=where,
            fix=f"choose one of {', '.join(known)}, or a format of Spark such as 'json'; a format of a package needs "
            "spark.jars.packages",
        ) from error
