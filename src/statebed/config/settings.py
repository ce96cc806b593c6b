"""Every setting, declared once: its name, type, default and meaning.

The name is the same in every source: `memory` is a keyword of a job, `spark.statebed.memory` in Spark's configuration,
`STATEBED_MEMORY` in the environment and `memory` in statebed.toml. The reference page is generated from this module.
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
    """Description of a setting."""

    name: str
    kind: ValueType
    default: Any
    text: str
    otherwise: str
    """Behaviour if it is not set, for settings without a fixed default."""

    def shown(self, value: Any) -> str:
        """Format a value, or the default if it is None."""
        return self.otherwise if value is None else self.kind.show(value)


class SettingSource(enum.Enum):
    """Source of a value, in order of precedence."""

    KEYWORD = "keyword"
    SPARK_CONF = "Spark configuration"
    ENVIRONMENT = "environment"
    FILE = "file"
    DEFAULT = "default"


@dataclass(frozen=True)
class SettingOrigin:
    """Exact origin of a value."""

    source: SettingSource
    text: str
    """Human-readable text, such as 'environment STATEBED_MEMORY'."""


DEFAULT_PLACE = SettingOrigin(SettingSource.DEFAULT, "default")


def _about(kind: ValueType, text: str, *, otherwise: str = "") -> dict[str, Any]:
    return {_DECLARED: (kind, text, otherwise)}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a job; built by `resolve`."""

    state: str = field(
        default="statebed-state", metadata=_about(value_types.LOCATION, "folder or URL of the job's state")
    )
    memory: int | None = field(
        default=None,
        metadata=_about(
            value_types.size(1),
            "memory for the state of this job on one host: a share for the host cache, the rest for its task slots",
            otherwise="a quarter of the host's memory, at most 4 GiB; or 512 MiB per task slot if that is more",
        ),
    )
    memory_shares: Mapping[str, float] | None = field(
        default=None,
        metadata=_about(
            value_types.shares(),
            "parts of each task's memory that are reserved for operators or tables (`operator.table`)",
            otherwise="all share one budget, and the coldest state is evicted first",
        ),
    )
    parallelism: int | None = field(
        default=None,
        metadata=_about(
            value_types.whole_number(1, MAX_PARALLELISM),
            "number of subtasks of each operator; may change at every start",
            otherwise="the number set by `statebed rescale`, else Spark's default parallelism",
        ),
    )
    task_slots: int | None = field(
        default=None,
        metadata=_about(
            value_types.whole_number(1, _MANY),
            "number of tasks that run on one host at the same time; `memory` is divided by it",
            otherwise="what Spark reports about its executors",
        ),
    )
    attempts: int = field(
        default=3,
        metadata=_about(
            value_types.whole_number(1, 100),
            "number of attempts at the Spark job of an epoch, in addition to Spark's own retries of single tasks",
        ),
    )
    epoch_timeout: dt.timedelta = field(
        default=dt.timedelta(hours=6),
        metadata=_about(
            value_types.duration(dt.timedelta(seconds=1)),
            "an epoch that takes longer is cancelled, and the query fails",
        ),
    )
    idle_after: dt.timedelta = field(
        default=dt.timedelta(seconds=1),
        metadata=_about(
            value_types.duration(_MOMENT), "time without a batch after which timers fire and windows close anyway"
        ),
    )
    requests_every: dt.timedelta = field(
        default=dt.timedelta(seconds=1),
        metadata=_about(
            value_types.duration(_MOMENT), "minimum interval at which a running job looks for requests of tools"
        ),
    )
    heartbeat_every: dt.timedelta = field(
        default=dt.timedelta(seconds=20),
        metadata=_about(
            value_types.duration(dt.timedelta(milliseconds=100)),
            "interval of the driver's heartbeat; a run without one for three intervals is shown as vanished",
        ),
    )
    retained_epochs: int = field(
        default=DEFAULT_EPOCHS,
        metadata=_about(value_types.whole_number(1, _MANY), "number of epochs of the current lineage to retain"),
    )
    retained_age: dt.timedelta | None = field(
        default=None,
        metadata=_about(
            value_types.duration(_NONE),
            "also retain every epoch younger than this",
            otherwise="only `retained_epochs` applies",
        ),
    )
    reader_grace: dt.timedelta = field(
        default=dt.timedelta(microseconds=DEFAULT_READER_GRACE_US),
        metadata=_about(
            value_types.duration(_NONE),
            "how long files stay after the record that dropped them, for readers that opened it earlier",
        ),
    )
    collect_every: int = field(
        default=16, metadata=_about(value_types.whole_number(1, _MANY), "number of epochs between two clean-ups")
    )
    cache_folder: str | None = field(
        default=None,
        metadata=_about(
            value_types.FOLDER,
            "folder of the host cache, on a local disk",
            otherwise="`statebed/host-cache` in `XDG_CACHE_HOME` of each host, else in `~/.cache`",
        ),
    )
    cache_share: float = field(
        default=0.5, metadata=_about(value_types.share(0.9), "part of `memory` for the host cache")
    )
    cache_limit: int = field(
        default=20 << 30,
        metadata=_about(value_types.size(1 << 20), "disk space of the host cache, at most a quarter of the disk"),
    )
    compaction_every: int = field(
        default=32,
        metadata=_about(value_types.whole_number(1, _MANY), "number of epochs between two compactions"),
    )
    compaction_bytes: int = field(
        default=256 << 20,
        metadata=_about(value_types.size(1 << 20), "bytes of files that one compaction of a subtask reads"),
    )
    preaggregate_below: float = field(
        default=0.25,
        metadata=_about(
            value_types.share(1.0),
            "pre-aggregate rows that Spark reads in the JVM if there are at most this many groups per row; 0: never, "
            "1: always, even where tasks could read the files",
        ),
    )
    native_scan: bool = field(
        default=True,
        metadata=_about(
            value_types.FLAG,
            "read Parquet files and messages of Kafka in the tasks, without the JVM, if all steps before the first "
            "operator allow it; Spark reads other sources",
        ),
    )
    probe_timeout: dt.timedelta = field(
        default=dt.timedelta(minutes=5),
        metadata=_about(value_types.duration(_MOMENT), "timeout for the check of executors when a job starts"),
    )
    metrics_port: int | None = field(
        default=None,
        metadata=_about(
            value_types.whole_number(0, 65_535),
            "port of the driver's Prometheus endpoint, shared by all its jobs; 0 chooses a free port",
            otherwise="no endpoint",
        ),
    )
    metrics_address: str = field(
        default="127.0.0.1",
        metadata=_about(value_types.TEXT, "address on which metrics are served; `0.0.0.0` for all"),
    )
    opentelemetry: bool = field(
        default=False,
        metadata=_about(
            value_types.FLAG,
            "send metrics and a span per epoch with OpenTelemetry, as configured by its `OTEL_` variables",
        ),
    )
    places: Mapping[str, SettingOrigin] = field(default_factory=dict, repr=False)
    """Origin of each value that is not the default."""

    def place_of(self, name: str) -> SettingOrigin:
        """Return the origin of a setting's value."""
        return self.places.get(name, DEFAULT_PLACE)

    @property
    def retention(self) -> Retention:
        """Return the retention policy of the run."""
        return Retention(epochs=self.retained_epochs, max_age=self.retained_age, reader_grace=self.reader_grace)


DECLARATIONS: Mapping[str, Declaration] = {
    field_.name: Declaration(field_.name, kind, field_.default, text, otherwise)
    for field_ in dataclasses.fields(Settings)
    if _DECLARED in field_.metadata
    for kind, text, otherwise in [field_.metadata[_DECLARED]]
}
"""Settings by name, in the order of the reference."""
