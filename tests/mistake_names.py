"""Names that the mistakes of the page of error messages use, by the title of their section."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any, ClassVar

import pyarrow as pa
from published import publication

import statebed as sb
from statebed.format.stream_schema import WEIGHT, Changes, Output
from statebed.sinks import FunctionSink
from statebed.sinks.registry import KINDS, SinkRequest
from statebed.sinks.row_shape import declared_key, has_one_row
from statebed.sql.shell_statements import parse_shell_text
from statebed.sql.source_text import SqlText

TIMED = "2026-01-01T12:00:00Z"


def tip(fare: pa.Array) -> pa.Array:
    """Return a tip; a function that expressions can call."""
    return fare


def tip_too(fare: pa.Array) -> pa.Array:
    """Return a tip; another function."""
    return fare


async def plus(fare: float) -> float:
    """Return a fare and a bit; a function that expressions can call."""
    return fare + 1


class _Called:
    """A function that can be pickled, whatever it calls: tests keep it in one process."""

    functions: ClassVar[list[Callable[..., Any]]] = []

    def __init__(self, function: Callable[..., Any]) -> None:
        self.number = len(self.functions)
        self.functions.append(function)
        self.__name__ = self.__qualname__ = "f"

    def __call__(self, *arguments: Any) -> Any:
        return self.functions[self.number](*arguments)


def function_names() -> dict[str, Any]:
    """Return the names of mistakes in Python functions."""
    columns = "driver string, fare double, tags array<string>"
    flow = sb.Flow()

    def run(function: Callable[..., Any], returns: str, *, in_expression: bool) -> None:
        own = sb.Flow()
        rides = own.source("rides", columns)
        if in_expression:
            own.register_function("f", function, returns=returns)
            rides.select("f(fare) as x").named("results")
        else:
            rides.transform(function, schema=returns).named("results")
        with sb.testing.run(own) as test:
            test.feed("rides", [{"driver": "ann", "fare": 7.5}, {"driver": "bob", "fare": 5.0}])

    def called(function: Callable[..., Any], returns: str) -> None:
        run(plus if function is plus else _Called(function), returns, in_expression=True)

    def transformed(function: Callable[..., Any]) -> None:
        run(_Called(function), "n bigint", in_expression=False)

    return {
        "flow": flow,
        "rides": flow.source("rides", columns),
        "tip": tip,
        "tip_too": tip_too,
        "plus": plus,
        "called": called,
        "transformed": transformed,
    }


def lookup_names() -> dict[str, Any]:
    """Return the names of mistakes in explode, lookups and change events."""
    flow = sb.Flow()
    rides = flow.source("rides", "driver string, fare double, tags array<string>")
    columns = "currency string, rate double, gone boolean"
    rates = flow.source("rates", columns)
    row = "struct<id: bigint, n: bigint>"
    return {
        "rides": rides,
        "rates": rates,
        "rates_too": flow.source("rates_too", columns),
        "table": rates.broadcast("currency"),
        "other_table": sb.Flow().source("rates", columns).broadcast("currency"),
        "changelog": rides.key_by("driver", name="changelog").agg(n=sb.count()),
        "pairs": flow.source("pairs", "pairs array<struct<a: bigint>>"),
        "clock": flow.source("clock", pa.schema([("city", pa.string()), ("at", pa.time32("s"))])),
        "events": flow.source("events", f"before {row}, after {row}, op string, row_kind string"),
    }


def time_names() -> dict[str, Any]:
    """Return the names of mistakes in times of joins."""
    flow = sb.Flow()
    rides = flow.source("rides", "driver string, fare double, ts timestamp", watermark=("ts", "0s"))
    columns = "driver string, fare double, paid_at timestamp"
    return {
        "rides": rides,
        "fares": flow.source("fares", columns, watermark=("paid_at", "0s")),
        "changelog": rides.key_by("driver", name="changelog").agg(n=sb.count()),
        "minute": sb.tumbling("1 minute"),
    }


class _Batch(sb.Process):
    total = sb.ValueState("n bigint")
    list = sb.ListState("n bigint")
    map = sb.MapState(key="string", value="bigint")
    output = "driver string, n bigint not null"
    side_outputs: ClassVar[Mapping[str, str]] = {"alerts": "driver string"}


class _Row(sb.ProcessKey):
    total = sb.ValueState("n bigint")
    list = sb.ListState("n bigint")
    map = sb.MapState(key="string", value="bigint")
    output = "driver string, n bigint not null"
    side_outputs: ClassVar[Mapping[str, str]] = {"alerts": "driver string"}


def process_names() -> dict[str, Any]:
    """Return the names of mistakes in processes."""

    def run(base: type[sb.Process], method: str, function: Callable[..., Any], **attributes: Any) -> None:
        key = attributes.pop("key", "driver")
        if attributes.pop("timers", False):
            attributes["on_timer"] = lambda self, timers, ctx: None
        own = {"file": attributes.pop("file")} if "file" in attributes else {}
        kind = type("P", (base,), {method: function, **attributes})
        process = kind()
        vars(process).update(own)
        flow = sb.Flow()
        rides = flow.source("rides", "driver string, at string, m bigint, ts timestamp", watermark=("ts", "0s"))
        rides.key_by(*([key] if key else []), name="p").process(process)
        with sb.testing.run(flow) as test:
            test.feed("rides", [{"driver": name, "ts": TIMED} for name in ("ann", "bob")])

    return {
        "batch": lambda function, **attributes: run(_Batch, "on_batch", function, **attributes),
        "row": lambda function, **attributes: run(_Row, "on_rows", function, **attributes),
    }


def testing_names(open_runs: ExitStack) -> dict[str, Any]:
    """Return the names of mistakes in test runs; `open_runs` ends the run."""
    flow = sb.Flow()
    rides = flow.source("rides", "driver string, n bigint, ts timestamp", watermark=("ts", "0s"))
    rides.key_by("driver", name="counts").agg(n=sb.count())

    def run(**options: Any) -> None:
        with sb.testing.run(flow, **options):
            pass

    return {"run": run, "test": open_runs.enter_context(sb.testing.run(flow))}


COLUMNS = pa.schema([("driver", pa.string()), ("n", pa.int64())])
ROWS = pa.table({"driver": ["ann", "ann"], "n": [1, 2]}, schema=COLUMNS)


def sink(
    kind: str, output: Output, *, job: str = "rides", key: Any = None, path: str | None = None, **options: Any
) -> Any:
    """Build a sink as `write` does."""
    where = "write()"
    wanted = SinkRequest(
        sink_id="out",
        job_id=job,
        output=output,
        key=declared_key(output, key, where=where),
        one_row=has_one_row(output, key, where=where),
        path=path,
        options=options,
        where=where,
    )
    return KINDS[kind].make(wanted)


def sink_names() -> dict[str, Any]:
    """Return the names of mistakes in sinks."""

    def typed(kind: str, fields: list[Any], **options: Any) -> None:
        sink(kind, Output(pa.schema(fields), Changes.APPEND), **options).check(last_number=0)

    return {
        "append": partial(_checked, Changes.APPEND),
        "changes": partial(_checked, Changes.CHANGELOG),
        "typed": typed,
    }


def _checked(changes: Changes, kind: str, **options: Any) -> None:
    sink(kind, Output(COLUMNS, changes), **options)


def published_names(folder: Path) -> dict[str, Any]:
    """Return the names of mistakes in rows that sinks write."""
    (folder / "foreign").mkdir()
    (folder / "foreign" / "readme.txt").write_text("no table of statebed")
    appended, keyed = Output(COLUMNS, Changes.APPEND), Output(COLUMNS, Changes.CHANGELOG)

    def publish(target: Any, *, epochs: Sequence[int] = (2,), rows: pa.Table = ROWS) -> None:
        target.check(last_number=max(epochs))
        target.probe()
        target.open(1)
        for epoch in epochs:
            target.publish(publication(1, epoch, rows))

    def twice(kind: str, **options: Any) -> None:
        weighted = ROWS.append_column(WEIGHT, pa.array([1, 1], pa.int64()))
        publish(sink(kind, keyed, key="driver", **options), rows=weighted)

    def shared(kind: str, **options: Any) -> None:
        publish(sink(kind, appended, **options))
        publish(sink(kind, appended, job="other", **options))

    def changed(kind: str, **options: Any) -> None:
        publish(sink(kind, appended, **options))
        other = pa.schema([("driver", pa.string()), ("n", pa.list_(pa.string()) if kind != "sqlite" else pa.string())])
        rows = pa.table({"driver": ["ann"], "n": [["a"] if kind != "sqlite" else "a"]}, schema=other)
        target = sink(kind, Output(other, Changes.APPEND), **options)
        target.check(last_number=3)
        target.open(2)
        target.publish(publication(2, 3, rows))

    def updated(kind: str, **options: Any) -> None:
        publish(sink(kind, appended, **options))
        sink(kind, keyed, key="driver", **options).open(2)

    def deleted(kind: str, *, path: str, **options: Any) -> None:
        target = sink(kind, appended, path=path, **options)
        publish(target)
        if Path(path).is_dir():
            rmtree(path)
        else:
            Path(path).unlink()
        target.publish(publication(1, 3, ROWS))

    return {
        "published": lambda kind, **options: publish(sink(kind, appended, **options)),
        "called": lambda function: publish(FunctionSink(sink_id="out", function=function, to_frame=lambda rows: rows)),
        "twice": twice,
        "shared": shared,
        "changed": changed,
        "updated": updated,
        "deleted": deleted,
    }


def sql_names() -> dict[str, Any]:
    """Return the name of mistakes in SQL text: it is only parsed, as all mistakes are found there."""
    return {"sql": lambda text: parse_shell_text(SqlText(text))}
