"""A whole pipeline as SQL text: settings, tables, views and INSERTs become one job.

SET 'job' = 'clicks';
CREATE TABLE clicks (...) WITH (connector = 'filesystem', ...);
INSERT INTO per_minute SELECT ...;
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from statebed.config.settings import DECLARATIONS
from statebed.errors import StatebedError
from statebed.queries.job import QueryJob
from statebed.queries.text.spark_errors import nearest
from statebed.queries.text.spark_settings import SPARK_PREFIX, set_spark
from statebed.sql.source_text import SqlSpan, SqlText
from statebed.sql.statement_parser import parse_statements
from statebed.sql.statements import InsertInto, SelectQuery, SetOption

JOB_NAMES = ("job", "pipeline.name")
"""Settings that name the job."""
TRIGGER = "processing_time"
"""Setting that says how often a job looks for input."""
_OTHER_SETTINGS = {
    "execution.checkpointing.dir": "state",
    "execution.checkpointing.interval": TRIGGER,
    "parallelism.default": "parallelism",
    "state.checkpoints.dir": "state",
}
"""Settings of other systems by our names."""
_NEEDLESS_SETTINGS = {
    "execution.runtime-mode": "remove it: a text runs as a stream, and `statebed sql --once` ends with the input",
    "sql-client.execution.result-mode": "remove it: results of SELECT are printed as changes",
    "state.backend.type": "remove it: state is kept in Parquet files, with a part in memory (SET 'memory' = '1g')",
    "table.exec.source.idle-timeout": "write SET 'idle_after' = '1 minute'",
    "table.exec.state.ttl": "remove it: windows and interval joins drop their state by event time",
}
"""Settings of Flink that are not accepted, and what to do instead."""


@dataclass(frozen=True)
class SqlPipeline:
    """A job made from SQL text."""

    source: SqlText
    job: QueryJob
    processing_time: str | None
    """Interval at which the job looks for input, if the text sets one."""


def read_pipeline(
    source: SqlText,
    *,
    name: str | None = None,
    state: str | Path | None = None,
    settings: Sequence[tuple[str, str]] = (),
    spark: SparkSession | None = None,
) -> SqlPipeline:
    """Make a job from SQL text; raise InputError at the place of a mistake.

    `name`, `state` and `settings` take precedence over SET statements of the text. Without a name the job is called
    after the file.
    """
    statements = parse_statements(source)
    options = [entry for entry in statements if isinstance(entry, SetOption)]
    rest = [entry for entry in statements if not isinstance(entry, SetOption)]
    if not any(isinstance(entry, InsertInto | SelectQuery) for entry in rest):
        raise source.mistake(
            "the text has no INSERT and no SELECT, so there is nothing to run",
            statements[-1].span if statements else SqlSpan(0, 0),
            fix="add INSERT INTO table SELECT ...",
        )
    chosen = PipelineSettings(source, options)
    job_name = name or chosen.job or _name_of(source)
    job = chosen.job_with(job_name, state, dict(settings), spark)
    for option in options:
        if option.name.text.startswith(SPARK_PREFIX):
            set_spark(source, job.spark, option)
    job.run_statements(source, rest)
    return SqlPipeline(source, job, dict(settings).get(TRIGGER) or chosen.value(TRIGGER))


class PipelineSettings:
    """SET statements of a text."""

    def __init__(self, source: SqlText, options: Sequence[SetOption]) -> None:
        self._source = source
        self._options: dict[str, SetOption] = {}
        for option in options:
            name = _OTHER_SETTINGS.get(option.name.text, option.name.text)
            if not (name in DECLARATIONS or name in JOB_NAMES or name == TRIGGER or name.startswith(SPARK_PREFIX)):
                known = ["job", TRIGGER, *DECLARATIONS]
                fix = _NEEDLESS_SETTINGS.get(name) or nearest(name, known, what="settings")
                raise source.mistake(f"there is no setting {name!r}", option.name.span, fix=fix)
            before = self._options.get(name)
            if before is not None and before.value.text != option.value.text:
                raise source.mistake(
                    f"{name!r} is set to {before.value.text!r} already, and a text is one job",
                    option.span,
                    fix="remove one of them: a SET holds for the whole text, wherever it stands",
                )
            self._options[name] = option

    @property
    def job(self) -> str | None:
        return next((self._options[name].value.text for name in JOB_NAMES if name in self._options), None)

    def value(self, name: str) -> str | None:
        option = self._options.get(name)
        return None if option is None else option.value.text

    def job_with(
        self, name: str, state: str | Path | None, more: dict[str, str], spark: SparkSession | None
    ) -> QueryJob:
        """Create the job with these settings."""
        values: dict[str, Any] = {
            entry: self._options[entry].value.text for entry in self._options if entry in DECLARATIONS
        }
        values |= {entry: value for entry, value in more.items() if entry != TRIGGER}
        location = state if state is not None else values.pop("state", None)
        values.pop("state", None)
        try:
            return QueryJob(name, state=location, settings=values, spark=spark)
        except StatebedError as error:
            for setting in (*JOB_NAMES, *self._options):
                option = self._options.get(setting)
                if option is not None and (setting in error.where or setting in JOB_NAMES):
                    raise self._source.mistake(error.what, option.value.span, fix=error.fix) from error
            raise


def _name_of(source: SqlText) -> str:
    """Return the name of the file without its suffix, as the name of a job."""
    return re.sub(r"\W+", "_", Path(source.name).stem, flags=re.ASCII).strip("_").lower() or "sql"
