"""State as a Spark table: `spark.read.format("statebed")`, and `USING statebed` in SQL.

Spark finds it automatically through the package `pyspark_statebed`. Each session that reads from any Python data source
starts a Python process that imports this module, so everything that reads state is loaded when it is first used.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

from statebed.errors import InputError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from statebed.inspect import StateTable
    from statebed.spark.api.change_feed import ChangeFeedReader
    from statebed.spark.api.state_reader import StateReader

NAME = "statebed"
OWN_OPTIONS = ("path", "job", "operator", "table", "epoch", "savepoint", "internal", "results")
FEED_OPTIONS = ("changes", "startingepoch")
"""Options of the stream of changes."""
STORAGE = "storage."
"""Prefix of options that are settings of the object store."""


class StateSource(DataSource):
    """A table of the state at one epoch."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._feed = _feed_options(options)
        self._arguments = _read_arguments(options)
        table = self._table()
        # Later reads of this DataFrame use the epoch that was the newest when it was created.
        self._arguments |= {"operator": table.operator, "table": table.table, "job": table.job}
        if self._arguments.get("savepoint") is None:
            self._arguments["epoch"] = table.record

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> "StructType":
        from statebed.spark.api.state_reader import schema_in_spark  # noqa: PLC0415 - only when state is read

        return schema_in_spark(self._table().schema, changes=self._feed is not None)

    def streamReader(self, schema: "StructType") -> "ChangeFeedReader":  # noqa: N802 - Spark's name
        if self._feed is None:
            raise InputError(
                "a stream of the state is a stream of its changes",
                where='readStream.format("statebed")',
                fix='add .option("changes", "true"), which adds the columns `change` and `_epoch`',
            )
        from statebed.spark.api.change_feed import ChangeFeedReader  # noqa: PLC0415 - only when state is read

        return ChangeFeedReader(self._arguments, schema, starting_epoch=self._feed.starting_epoch)

    def reader(self, schema: "StructType") -> "StateReader":
        if self._feed is not None:
            raise InputError(
                'the option "changes" is for streams',
                where='read.format("statebed")',
                fix="use readStream, or sb.diff_state(...) for the changes between two epochs",
            )
        from statebed.spark.api.state_reader import StateReader  # noqa: PLC0415 - only when state is read

        return StateReader(self._table(), schema)

    def _table(self) -> "StateTable":
        from statebed.inspect import read_state  # noqa: PLC0415 - only when state is read

        return read_state(**self._arguments)


def _read_arguments(options: dict[str, str]) -> dict[str, Any]:
    """Return the arguments of `read_state`."""
    by_name = {name.lower(): value for name, value in options.items() if name.lower() not in FEED_OPTIONS}
    storage = {name.removeprefix(STORAGE): value for name, value in by_name.items() if name.startswith(STORAGE)}
    unknown = [name for name in by_name if name not in OWN_OPTIONS and not name.startswith(STORAGE)]
    if unknown or "path" not in by_name:
        raise InputError(
            f"the options {sorted(unknown)} are unknown" if unknown else "no state location is given",
            where='format("statebed")',
            fix=f"call load(location), with options {', '.join(OWN_OPTIONS[1:])}, and {STORAGE}... for the store",
        )
    epoch = by_name.get("epoch")
    if epoch is not None and not epoch.isdigit():
        raise InputError(
            f"`epoch` must be a number, got {epoch!r}", where='format("statebed")', fix="pass an epoch number"
        )
    return {
        "url": by_name["path"],
        "job": by_name.get("job"),
        "operator": by_name.get("operator"),
        "table": by_name.get("table"),
        "epoch": None if epoch is None else int(epoch),
        "savepoint": by_name.get("savepoint"),
        "internal": by_name.get("internal", "false").lower() == "true",
        "results": by_name.get("results", "false").lower() == "true",
        "storage_options": storage,
    }


@dataclass(frozen=True)
class FeedOptions:
    """Options of the stream of changes."""

    starting_epoch: int | None
    """Epoch whose changes come first; None to begin with the rows of the newest epoch."""


def _feed_options(options: dict[str, str]) -> FeedOptions | None:
    """Return the options of the stream of changes, or None if the state itself is to be read."""
    by_name = {name.lower(): value for name, value in options.items()}
    where = 'format("statebed")'
    if by_name.get("changes", "false").lower() != "true":
        if "startingepoch" in by_name:
            raise InputError(
                'the option "startingEpoch" is for streams of changes',
                where=where,
                fix='add .option("changes", "true")',
            )
        return None
    pinned = [name for name in ("epoch", "savepoint") if name in by_name]
    if pinned:
        raise InputError(
            f"a stream of changes has no {pinned[0]}", where=where, fix="use startingEpoch, or leave the option out"
        )
    epoch = by_name.get("startingepoch")
    if epoch is not None and not (epoch.isascii() and epoch.isdigit() and int(epoch)):
        raise InputError(
            f"`startingEpoch` must be the number of an epoch, got {epoch!r}", where=where, fix="pass an epoch number"
        )
    return FeedOptions(None if epoch is None else int(epoch))
