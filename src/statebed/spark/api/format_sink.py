"""Any batch format of Spark's as sink, by its name and options: at least once, because formats compare no epoch.

The epoch is visible where the user wants it: `{epoch}` in the path becomes the epoch's number, and with
`mode="overwrite"` a folder per epoch is then written again instead of twice; `epoch_column=` adds it to the rows.

Delta's own table does compare: it gets the job, the sink and the epoch as its transaction identifiers, and skips what
it has. It does not know runs, so a superseded run is kept out by the check before each epoch alone.
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
from statebed.protocol import Guarantee
from statebed.sinks.base import BaseSink
from statebed.sinks.places import real_place
from statebed.sinks.row_shape import RowShape, shaped_rows

DELTA = "delta"
EPOCH = "{epoch}"
MODES = ("append", "overwrite")
_OF_FILES = frozenset({"avro", "csv", "json", "orc", "text", "xml", DELTA})
_TRANSACTION_OPTIONS = ("txnAppId", "txnVersion")


@dataclass(frozen=True)
class FormatTarget:
    """Where and how a format writes."""

    format: str
    path: str | None
    mode: str
    partition_by: tuple[str, ...]
    options: Mapping[str, Any] = field(repr=False)
    """Of the format's own; there may be a secret in them."""

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE if self.format == DELTA else Guarantee.AT_LEAST_ONCE

    def save(self, frame: DataFrame, *, owner: str, epoch: int) -> None:
        """Write the rows of an epoch."""
        options = dict(self.options)
        if self.format == DELTA:
            options |= dict(zip(_TRANSACTION_OPTIONS, (owner, epoch), strict=True))
        writer = frame.write.format(self.format).mode(self.mode).options(**options)
        if self.partition_by:
            writer = writer.partitionBy(*self.partition_by)
        writer.save(None if self.path is None else self.path.replace(EPOCH, f"{epoch:0{EPOCH_DIGITS}d}"))


_PLACES = ("topic", "dbtable")
"""Options that say where a format without a path writes."""


class FormatSink(BaseSink):
    """Writes each epoch with a batch format of Spark's."""

    shares_target: ClassVar[bool] = True

    def __init__(
        self,
        *,
        sink_id: str,
        job_id: str,
        target: FormatTarget,
        shape: RowShape,
        to_frame: Callable[[pa.Table], DataFrame],
    ) -> None:
        super().__init__(sink_id)
        self.kind = f"format {target.format}"
        self._owner = f"{job_id}/{sink_id}"
        self._target = target
        self._shape = shape
        self._to_frame = to_frame

    @property
    def guarantee(self) -> Guarantee:  # type: ignore[override]  # it depends on the format
        return self._target.guarantee

    @property
    def target(self) -> str:
        """The path, the topic or the table; other options may hold secrets."""
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
            self._target.save(self._to_frame(shaped), owner=self._owner, epoch=publication.epoch)
        except Exception as error:
            raise SinkError(
                f"Spark's format {self._target.format} of sink {self._sink_id} failed with "
                f"{type(error).__name__}: {str(error).strip()}",
                where=f"epoch {publication.epoch}, {shaped.num_rows} rows",
                fix="see the message, and start the job again: the epoch is committed, and comes first then",
            ) from error


def format_target(
    format_name: str, *, path: str | None, options: Mapping[str, Any], columns: Sequence[str], where: str
) -> FormatTarget:
    """What the user wrote, with our own options apart from the format's."""
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
            fix="write mode='append', or mode='overwrite' with {epoch} in the path",
        )
    unknown = [name for name in names if name not in columns]
    if unknown:
        raise InputError(
            f"partition_by names {unknown}, and the rows have {list(columns)}", where=where, fix="name some of these"
        )
    taken = [name for name in _TRANSACTION_OPTIONS if name in left]
    if taken and format_name == DELTA:
        raise InputError(
            f"{taken} are given by statebed, from the job, the sink and the epoch", where=where, fix="leave them out"
        )
    for name, value in left.items():
        if not isinstance(value, str | int | float | bool):
            raise InputError(
                f"the option {name}={value!r} is no text, number or truth value", where=where, fix="give one"
            )
    return FormatTarget(format_name, path, mode, names, left)


def check_format(session: SparkSession, name: str, *, known: Sequence[str], where: str) -> None:
    """Refuse a format that this Spark does not have."""
    jvm: Any = session.sparkContext._jvm  # noqa: SLF001 - PySpark has no other way to ask
    conf = session._jsparkSession.sessionState().conf()  # noqa: SLF001
    sources = jvm.org.apache.spark.sql.execution.datasources.DataSource
    try:
        if sources.lookupDataSourceV2(name, conf).isDefined():
            return
        sources.lookupDataSource(name, conf)
    except Py4JError as error:
        raise InputError(
            f"there is no sink {name!r}, and Spark has no format of that name",
            where=where,
            fix=f"sinks are {', '.join(known)}, and Spark's formats, such as 'json'; a format of a package needs "
            "spark.jars.packages",
        ) from error
