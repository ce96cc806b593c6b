"""Writes docs/reference/error-messages.md: `python tests/error_messages.py` runs the mistakes again that need no Spark,
`scripts/with-java python tests/error_messages.py --spark` all of them.

Each mistake is evaluated in a fresh folder. An error that is not one of statebed's, or no error at all, is a failure.
"""

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
from mistake_names import (
    function_names,
    lookup_names,
    process_names,
    published_names,
    sink_names,
    sql_names,
    testing_names,
    time_names,
)
from mistake_section import Section
from mistakes import ON_SPARK, SECTIONS
from sql_mistakes import SQL_TABLES

import statebed as sb
from statebed.checkpoint import EpochDraft, Run
from statebed.cli import main
from statebed.config import resolve
from statebed.errors import StatebedError
from statebed.format import checkpoint_pb2 as pb
from statebed.sql.source_text import SqlText
from statebed.state import (
    Codec,
    CommitData,
    ManagerOptions,
    MemoryController,
    Merge,
    RecordBatch,
    TableData,
    TableManager,
    TaskInfo,
    global_table_config,
    global_table_config_with_version,
    keyed_table_config,
    merge_columns,
    multiset_table_config,
    operator_entry,
    timestamp_table_config,
)
from statebed.storage import ScopedStore, get_storage_provider

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "error-messages.md"

_ADDRESS = re.compile(r" at 0x[0-9a-f]+(?=>)")
"""Address of an object in memory, as Python's own errors contain it."""

_HEAD = """# Error messages

Mistakes and what statebed answers, word for word: the [code](errors.md), what is wrong, where, and what to do. All of
them are detected before anything is written.

*This page is generated: `scripts/with-java python tests/error_messages.py --spark` makes every mistake again. A
test compares those that need no Spark.*
"""

RIDES = pa.schema(
    [
        ("driver", pa.string()),
        ("fare", pa.float64()),
        ("trips", pa.int64()),
        ("tags", pa.list_(pa.string())),
        ("ts", pa.timestamp("us", tz="UTC")),
    ]
)
TRIPS = pa.schema([("driver", pa.string()), ("trips", pa.int64())])


class NoOutput(sb.Process):
    """A process that does not declare its output."""

    def on_batch(self, rows: pa.Table, ctx: sb.Context) -> pa.Table:
        return rows


class NoMethod(sb.Process):
    """A process without on_batch."""

    output = "driver string"


class UnknownType(NoOutput):
    """A process whose output has a type that does not exist."""

    output = "driver text"


class ShadowsKey(NoOutput):
    """A process with a state that has the name of a key column."""

    output = "driver string"
    seen = sb.ValueState("driver string")


class StateOfInstance(NoOutput):
    """A process that assigns a state to the instance."""

    output = "driver string"

    def __init__(self) -> None:
        self.seen = sb.ValueState("n bigint")


PROCESSES = (NoOutput, NoMethod, UnknownType, ShadowsKey, StateOfInstance)


def _flow_names() -> dict[str, Any]:
    flow = sb.Flow()
    rides = flow.source("rides", RIDES, watermark=("ts", "10 minutes"))
    untimed = flow.source("untimed", RIDES)
    return {
        "rides": rides,
        "untimed": untimed,
        "changelog": untimed.key_by("driver", name="changelog").agg(n=sb.count()),
        "other_flow": sb.Flow().source("other", RIDES),
        "SCHEMA": RIDES,
        **{kind.__name__: kind for kind in PROCESSES},
    }


def _state_names() -> dict[str, Any]:
    store = ScopedStore(get_storage_provider("memory://trips"), "trips")
    tables = {"trips": keyed_table_config("trips", "", ["driver"], TRIPS), **global_table_config("limits", "")}
    tables["fares"] = timestamp_table_config("fares", "", timedelta(hours=1), False, TRIPS, keys=["driver"])
    tables["timed"] = keyed_table_config("timed", "", ["driver"], TRIPS, timedelta(days=1))
    manager = TableManager(TaskInfo("trips", "count"), tables, store)
    return {
        "SCHEMA": TRIPS,
        "manager": manager,
        "view": manager.get_keyed("trips"),
        "keys": pa.table({"driver": ["d1"]}),
        "rows": pa.table({"trips": [1]}),
        "store": store,
        "keyed_table_config": keyed_table_config,
        "timestamp_table_config": timestamp_table_config,
        "global_table_config_with_version": global_table_config_with_version,
        "multiset_table_config": multiset_table_config,
        "fares": manager.get_time_keyed("fares"),
        "timed": manager.get_keyed("timed"),
        "TableManager": TableManager,
        "TableData": TableData,
        "CommitData": CommitData,
        "RecordBatch": RecordBatch,
        "TaskInfo": TaskInfo,
        "MemoryController": MemoryController,
        "ManagerOptions": ManagerOptions,
        "Codec": Codec,
        "Merge": Merge,
        "merge_columns": merge_columns,
        "get_storage_provider": get_storage_provider,
        "Run": Run,
    }


_NAMES: Mapping[str, Callable[[], dict[str, Any]]] = {
    "Flows": _flow_names,
    "Python functions": function_names,
    "Explode, lookups and change events": lookup_names,
    "Times of joins": time_names,
    "Processes": process_names,
    "SQL text": sql_names,
    "Settings": lambda: {
        "settings": lambda **settings: resolve(settings, spark_conf={}, environ={}, folder=Path()),
    },
    "Sinks": sink_names,
    "Kafka, Delta, Iceberg and SQL databases": sink_names,
    "Rows that a sink cannot write": lambda: published_names(Path()),
    "Reading state": lambda: {"drivers": sb.read_state("state", table="drivers")},
    "State without Spark": _state_names,
}
"""Names of each section, by its title."""


def names_of(section: Section, open_runs: contextlib.ExitStack) -> dict[str, Any]:
    """Return the names that the mistakes of a section use."""
    common = {"sb": sb, "pa": pa, "timedelta": timedelta, "datetime": datetime}
    if section.title == "Test runs":
        return common | testing_names(open_runs)
    return common | _NAMES.get(section.title, dict)()


def write_state() -> None:
    """Write the folder `state` that mistakes read: the job rides at epoch 4, with the savepoint monday."""
    store = ScopedStore(get_storage_provider("state"), "rides")
    drivers = pa.schema([("city", pa.string()), ("driver", pa.int64()), ("trips", pa.int64())])
    fares = pa.schema([("driver", pa.int64()), ("cents", pa.int64())])
    tables = {
        "drivers": keyed_table_config("drivers", "trips by driver", ["city", "driver"], drivers),
        "fares": timestamp_table_config("fares", "", timedelta(hours=1), False, fares, keys=["driver"]),
        **global_table_config("settings", ""),
    }
    run = Run.open(store, "rides")
    with TableManager(TaskInfo("rides", "count"), tables, store) as manager:
        view = manager.get_keyed("drivers")
        for trips in range(3):
            view.upsert(pa.table({"city": ["Ulm"], "driver": [7]}), pa.table({"trips": [trips]}))
            if trips == 1:
                run.add_request(pb.Request(savepoint=pb.SavepointRequest(name="monday", epoch=2)))
            entry = operator_entry([manager.checkpoint(run.next_epoch, 0, None).result(timeout=60)])
            run.commit(EpochDraft(operators=[entry]))


def answer(mistake: str, names: dict[str, Any]) -> str:
    """Return what statebed answers to a mistake."""
    if mistake.startswith("statebed "):
        printed = io.StringIO()
        with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(io.StringIO()):
            code = main(shlex.split(mistake)[1:])
        return f"{printed.getvalue().strip()}\nexit code {code}" if code else ""
    try:
        eval(mistake, names)  # noqa: S307 - the mistakes are written in this repository
    except StatebedError as error:
        return str(error)
    return ""


@contextlib.contextmanager
def fresh_folder() -> Iterator[Path]:
    """Work in an empty folder, with a terminal of known width."""
    before, environment = Path.cwd(), os.environ.copy()
    with tempfile.TemporaryDirectory() as folder:
        try:
            os.chdir(folder)
            os.environ.update({"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"})
            yield Path(folder).resolve()
        finally:
            os.chdir(before)
            os.environ.clear()
            os.environ.update(environment)


def answered(sections: Sequence[Section], names_for: Callable[[Section, str], dict[str, Any]]) -> tuple[str, list[str]]:
    """Return the sections as text, and the mistakes that raised no error of statebed."""
    parts, accepted = [], []
    for section in sections:
        parts.append(f"## {section.title}\n" + (f"\n{section.about}\n" if section.about else ""))
        for mistake in section.mistakes:
            try:
                text = answer(mistake, names_for(section, mistake))
            except Exception as error:  # noqa: BLE001 - listed as a failure below
                text = ""
                accepted.append(f"{mistake}: {type(error).__name__}: {error}")
            else:
                if not text:
                    accepted.append(f"{mistake}: no error")
            shown = text.replace(f"{Path.cwd()}/", "").replace(str(Path.cwd()), ".")
            shown = _ADDRESS.sub("", shown)
            prompt = "$" if mistake.startswith("statebed ") else ">>>"
            parts.append(f"```text\n{prompt} {mistake}\n{shown}\n```\n")
    return "\n".join(parts), accepted


def plain_part() -> tuple[str, list[str]]:
    """Return the page up to the sections that need Spark, and the mistakes that raised no error of statebed."""
    with fresh_folder(), contextlib.ExitStack() as open_runs:
        write_state()
        Path("latin.sql").write_bytes(b"SELECT '\xe9'")
        Path("empty.sql").write_text("-- nothing", encoding="utf-8")
        names = {section.title: names_of(section, open_runs) for section in SECTIONS}
        text, accepted = answered(SECTIONS, lambda section, _: names[section.title])
    return f"{_HEAD}\n{text}", accepted


def spark_part(spark: Any) -> tuple[str, list[str]]:
    """Return the sections that need Spark, and the mistakes that raised no error of statebed or wrote something."""
    with fresh_folder() as folder:
        (folder / "in").mkdir()
        (folder / "checkpoint" / "offsets").mkdir(parents=True)
        text, accepted = answered(ON_SPARK, lambda _, mistake: _spark_names(spark, folder, mistake))
        accepted += [
            f"something was written: {path}" for path in folder.iterdir() if path.name not in {"in", "checkpoint"}
        ]
    return text, accepted


def _spark_names(spark: Any, folder: Path, mistake: str) -> dict[str, Any]:
    """Return the names that a mistake in a job uses. Each has jobs of its own, because it may leave half of one."""
    schema = "driver string, fare double, cents bigint, status string, ts timestamp"
    df = spark.readStream.schema(schema).parquet(str(folder / "in"))
    minute = sb.tumbling("1 minute")

    def job() -> sb.Job:
        return sb.Job("rides", state="jobs", spark=spark)

    def rides(of: sb.Job) -> Any:
        return of.source(df, "rides", watermark=("ts", "1 minute"))

    def whole() -> sb.Job:
        made = job()
        rides(made).group_by("driver", minute).agg(n=sb.count()).write("parquet", path="out")
        return made

    stream = cache(lambda: rides(job()))
    names: dict[str, Callable[[], Any]] = {
        "marked": lambda: df.withWatermark("ts", "1 minute"),
        "new_job": job,
        "untimed": lambda: job().source(df),
        "rides": stream,
        "elsewhere": lambda: rides(job()),
        "results": lambda: stream().group_by("driver", minute).agg(n=sb.count()),
        "counts": lambda: stream().key_by("driver", name="counts").agg(n=sb.count()),
        "job": whole,
    }
    words = set(re.findall(r"\w+", mistake))
    return {
        "pipeline": partial(_pipeline, spark),
        "sb": sb,
        "F": import_module("pyspark.sql.functions"),
        "spark": spark,
        "df": df,
        "minute": minute,
        "checkpoint": str(folder / "checkpoint"),
        "MemorySink": sb.MemorySink,
        **{name: make() for name, make in names.items() if name in words},
    }


def _pipeline(spark: Any, text: str) -> None:
    """Read a pipeline whose first line defines the tables that mistakes use."""
    source = SqlText(f"{SQL_TABLES}\n{text}", "pipeline.sql")
    import_module("statebed.queries.text.pipeline").read_pipeline(source, state="jobs", spark=spark)


def reviewed() -> tuple[str, str]:
    """Return the page as it is: what needs no Spark, and the rest."""
    plain, title, on_spark = PAGE.read_text(encoding="utf-8").partition(f"## {ON_SPARK[0].title}\n")
    return plain.removesuffix("\n") if title else plain, title + on_spark


def main_page() -> None:
    """Write the page."""
    plain, accepted = plain_part()
    on_spark = reviewed()[1]
    if "--spark" in sys.argv:
        sessions = import_module("pyspark.sql").SparkSession.builder.master("local[2]")
        spark = sessions.config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1").getOrCreate()
        spark.sparkContext.setLogLevel("OFF")
        on_spark, wrong = spark_part(spark)
        accepted += wrong
        spark.stop()
    if accepted:
        sys.exit("\n".join(accepted))
    PAGE.write_text(f"{plain}\n{on_spark}", encoding="utf-8")


if __name__ == "__main__":
    main_page()
