"""Every setting, declared once: its name, its kind, its default and what it means.

The name is the same wherever it is given: `memory` is a keyword of a job, `spark.statebed.memory` of Spark,
`STATEBED_MEMORY` of the environment and `memory` of statebed.toml. The reference page is written from here.
"""

import dataclasses
import datetime as dt
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from statebed.config import value_types
from statebed.config.value_types import ValueType
from statebed.format.ranges import MAX_PARALLELISM
from statebed.protocol.retention import DEFAULT_EPOCHS, DEFAULT_READER_GRACE_US, Retention

_MANY = 1_000_000
_DECLARED = "declared"
_NONE = dt.timedelta()
_MOMENT = dt.timedelta(milliseconds=1)


@dataclass(frozen=True)
class Declaration:
    """What is said of a setting beside its value."""

    name: str
    kind: ValueType
    default: Any
    text: str
    otherwise: str
    """What happens when it is not given, for settings without a fixed default."""

    def shown(self, value: Any) -> str:
        """A value, or the default, for people."""
        return self.otherwise if value is None else self.kind.show(value)


class SettingSource(enum.Enum):
    """Where a value came from; earlier ones go first."""

    KEYWORD = "keyword"
    SPARK_CONF = "Spark configuration"
    ENVIRONMENT = "environment"
    FILE = "file"
    DEFAULT = "default"


@dataclass(frozen=True)
class SettingOrigin:
    """Where exactly a value stands."""

    source: SettingSource
    text: str
    """For people: 'environment STATEBED_MEMORY'."""


DEFAULT_PLACE = SettingOrigin(SettingSource.DEFAULT, "default")


def _about(kind: ValueType, text: str, *, otherwise: str = "") -> dict[str, Any]:
    return {_DECLARED: (kind, text, otherwise)}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a job; made by `resolve`."""

    state: str = field(
        default="statebed-state", metadata=_about(value_types.LOCATION, "where the state of the job is kept")
    )
    memory: int | None = field(
        default=None,
        metadata=_about(
            value_types.size(1),
            "for the state of this job on one host: a share for the host's cache, the rest for its task slots",
            otherwise="a quarter of the host's memory, at most 4 GiB, or 512 MiB for each task slot if that is more",
        ),
    )
    memory_shares: Mapping[str, float] | None = field(
        default=None,
        metadata=_about(
            value_types.shares(),
            "parts of each task's memory that operators or tables (`operator.table`) keep, whatever others want",
            otherwise="all share one budget, and the coldest state leaves memory first",
        ),
    )
    parallelism: int | None = field(
        default=None,
        metadata=_about(
            value_types.whole_number(1, MAX_PARALLELISM),
            "number of subtasks of each operator; may change from run to run",
            otherwise="what `statebed rescale` chose, else Spark's default parallelism",
        ),
    )
    task_slots: int | None = field(
        default=None,
        metadata=_about(
            value_types.whole_number(1, _MANY),
            "tasks of this Spark that run on one host at the same time; `memory` is divided by it",
            otherwise="what Spark says of its executors",
        ),
    )
    attempts: int = field(
        default=3,
        metadata=_about(
            value_types.whole_number(1, 100),
            "how often the action of an epoch is tried, beyond the repetitions of single tasks that Spark makes",
        ),
    )
    epoch_timeout: dt.timedelta = field(
        default=dt.timedelta(hours=6),
        metadata=_about(
            value_types.duration(dt.timedelta(seconds=1)),
            "an epoch that takes longer is cancelled, and the query ends with an error",
        ),
    )
    idle_after: dt.timedelta = field(
        default=dt.timedelta(seconds=1),
        metadata=_about(
            value_types.duration(_MOMENT), "after so long without a batch, timers fire and windows close without one"
        ),
    )
    requests_every: dt.timedelta = field(
        default=dt.timedelta(seconds=1),
        metadata=_about(value_types.duration(_MOMENT), "how often a running job looks for requests of tools, at most"),
    )
    heartbeat_every: dt.timedelta = field(
        default=dt.timedelta(seconds=20),
        metadata=_about(
            value_types.duration(dt.timedelta(milliseconds=100)),
            "how often the driver writes a small object that says that the run is alive; a run that is silent for "
            "three times as long is shown as vanished",
        ),
    )
    retained_epochs: int = field(
        default=DEFAULT_EPOCHS,
        metadata=_about(value_types.whole_number(1, _MANY), "how many epochs of the present lineage are kept"),
    )
    retained_age: dt.timedelta | None = field(
        default=None,
        metadata=_about(
            value_types.duration(_NONE),
            "every epoch younger than this is kept, too",
            otherwise="the number alone decides",
        ),
    )
    reader_grace: dt.timedelta = field(
        default=dt.timedelta(microseconds=DEFAULT_READER_GRACE_US),
        metadata=_about(
            value_types.duration(_NONE),
            "files stay so much longer than the record that dropped them, for readers that opened it before",
        ),
    )
    collect_every: int = field(
        default=16, metadata=_about(value_types.whole_number(1, _MANY), "garbage is collected after so many epochs")
    )
    cache_folder: str | None = field(
        default=None,
        metadata=_about(
            value_types.FOLDER,
            "where a host keeps state at hand between epochs, on a local disk",
            otherwise="`statebed/host-cache` in XDG_CACHE_HOME of each host, else in `~/.cache`",
        ),
    )
    cache_share: float = field(
        default=0.5, metadata=_about(value_types.share(0.9), "the part of `memory` that is left to the host's cache")
    )
    cache_limit: int = field(
        default=20 << 30,
        metadata=_about(
            value_types.size(1 << 20), "most that the host's cache takes on disk; never more than a quarter of the disk"
        ),
    )
    compaction_every: int = field(
        default=32,
        metadata=_about(value_types.whole_number(1, _MANY), "files are merged beside the epochs after so many of them"),
    )
    compaction_bytes: int = field(
        default=256 << 20,
        metadata=_about(value_types.size(1 << 20), "bytes of files of one subtask that are merged at a time"),
    )
    preaggregate_below: float = field(
        default=0.25,
        metadata=_about(
            value_types.share(1.0),
            "rows of an aggregation are added up in the JVM first where so many groups for each row are left, or "
            "fewer; 0: never, 1: always",
        ),
    )
    probe_timeout: dt.timedelta = field(
        default=dt.timedelta(minutes=5),
        metadata=_about(value_types.duration(_MOMENT), "how long the executors may take to answer when a job starts"),
    )
    metrics_port: int | None = field(
        default=None,
        metadata=_about(
            value_types.whole_number(0, 65_535),
            "where the driver serves metrics of its jobs for Prometheus, all at one endpoint; 0: any free port",
            otherwise="they are not served",
        ),
    )
    metrics_address: str = field(
        default="127.0.0.1",
        metadata=_about(
            value_types.TEXT, "the address of this host that metrics are served at; `0.0.0.0`: all of them"
        ),
    )
    opentelemetry: bool = field(
        default=False,
        metadata=_about(
            value_types.FLAG,
            "whether metrics and a span for each epoch are sent by OpenTelemetry, as its `OTEL_` variables say",
        ),
    )
    places: Mapping[str, SettingOrigin] = field(default_factory=dict, repr=False)
    """Where each value came from; what is not in it is the default."""

    def place_of(self, name: str) -> SettingOrigin:
        """Where the value of a setting came from."""
        return self.places.get(name, DEFAULT_PLACE)

    @property
    def retention(self) -> Retention:
        """What is kept, as the run wants it."""
        microsecond = dt.timedelta(microseconds=1)
        return Retention(
            epochs=self.retained_epochs,
            max_age_us=None if self.retained_age is None else self.retained_age // microsecond,
            reader_grace_us=self.reader_grace // microsecond,
        )


DECLARATIONS: Mapping[str, Declaration] = {
    one.name: Declaration(one.name, kind, one.default, text, otherwise)
    for one in dataclasses.fields(Settings)
    if _DECLARED in one.metadata
    for kind, text, otherwise in [one.metadata[_DECLARED]]
}
"""Every setting by its name, in the order of the reference."""
