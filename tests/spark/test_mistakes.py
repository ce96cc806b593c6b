"""Mistakes in a job are found before anything is written, and each says what to do."""

import os
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import statebed as sb
from statebed.errors import InputError, InvalidNameError, JavaMissingError, StoreNotWritableError
from statebed.spark.session import check_session, check_version

MINUTE = sb.tumbling("1 minute")


def stream(rides: Any) -> Any:
    return sb.Job("rides", state=rides.state).source(rides.frame(), watermark=("ts", "1 minute"))


MISTAKES: dict[str, tuple[Callable[[Any], object], str]] = {
    "an unknown column in where": (lambda r: stream(r).where("fair > 0"), "fair"),
    "an unknown key": (lambda r: stream(r).group_by("chauffeur", MINUTE), "chauffeur"),
    "an unknown column in select": (lambda r: stream(r).select("driver", "tip"), "tip"),
    "an unknown input": (lambda r: stream(r).group_by("driver", MINUTE).agg(x=sb.sum("tip")), "tip"),
    "a sum of text": (lambda r: stream(r).group_by("driver", MINUTE).agg(x=sb.sum("status")), "string"),
    "no aggregate": (lambda r: stream(r).group_by("driver", MINUTE).agg(), "no aggregate"),
    "no window": (lambda r: stream(r).group_by("driver"), "group_by takes one window, got 0"),
    "something else than an aggregate": (
        lambda r: stream(r).group_by("driver", MINUTE).agg(x=F.sum("cents")),
        "not a statebed aggregate",
    ),
    "no event time": (
        lambda r: sb.Job("rides", state=r.state).source(r.frame()).group_by("driver", MINUTE),
        "need an event-time column",
    ),
    "an event time that a function dropped": (
        lambda r: stream(r).transform(lambda df: df.select("driver")).group_by("driver", MINUTE),
        "the rows have none",
    ),
    "two generators in one select": (
        lambda r: stream(r).select("explode(array(1)) as a", "explode(array(2)) as b"),
        "a select can explode one column, got 2",
    ),
    "a function that gives no stream": (
        lambda r: stream(r).transform(lambda df: None),
        "did not return a streaming DataFrame",
    ),
    "a union of other columns": (lambda r: stream(r).select("driver").union(stream(r)), "streams of a union"),
    "a watermark on text": (
        lambda r: sb.Job("rides", state=r.state).source(r.frame(), watermark=("driver", "1 minute")),
        "driver",
    ),
    "two watermarks of a source": (
        lambda r: sb.Job("rides", state=r.state).source(
            r.frame().withWatermark("ts", "1 minute"), watermark=("ts", "2 minutes")
        ),
        "already has a watermark",
    ),
    "a second watermark in a function": (
        lambda r: stream(r).transform(lambda df: df.withWatermark("ts", "2 minutes")),
        "have a watermark already",
    ),
    "two functions with two watermarks": (
        lambda r: [
            one.transform(late)
            for one in [sb.Job("rides", state=r.state).source(r.frame())]
            for late in (
                lambda df: df.withWatermark("ts", "60 seconds"),
                lambda df: df.withWatermark("ts", "2 minutes"),
            )
        ],
        "late after 2 minutes here, and after 1 minute elsewhere",
    ),
    "a name twice": (lambda r: stream(r).group_by("driver", MINUTE).agg(Driver=sb.count()), "two output columns"),
    "a reserved name": (lambda r: stream(r).group_by("driver", MINUTE).agg(window_end=sb.count()), "window_end"),
    "not a stream": (
        lambda r: sb.Job("rides", state=r.state).source(r.spark.range(3)),
        "not a streaming DataFrame",
    ),
    "not a DataFrame": (lambda r: sb.Job("rides", state=r.state).source([1, 2]), "must be a DataFrame"),  # type: ignore[arg-type]
    "random rows": (
        lambda r: stream(r).with_columns(x=F.rand()).group_by("driver", MINUTE).agg(n=sb.sum("x")),
        "different rows when computed again",
    ),
    "a stateful step of Spark": (
        lambda r: (
            sb.Job("rides", state=r.state)
            .source(r.frame().withWatermark("ts", "1 minute").dropDuplicates(["driver", "ts"]))
            .group_by("driver", MINUTE)
            .agg(n=sb.count())
        ),
        "stateful step of Spark",
    ),
    "state in memory": (lambda r: sb.Job("rides", state="memory://x"), "memory://"),
    "a size of memory": (lambda r: sb.Job("rides", state=r.state, memory="lots"), "lots"),
    "a parallelism": (lambda r: sb.Job("rides", state=r.state, parallelism=0), "parallelism"),
    "a session that is none": (lambda r: sb.Job("rides", state=r.state, spark="local"), "must be a SparkSession"),  # type: ignore[arg-type]
    "no source": (lambda r: sb.Job("rides", state=r.state).start(available_now=True), "no source"),
    "both triggers": (
        lambda r: r.job().start(available_now=True, processing_time="1 second"),
        "cannot be combined",
    ),
    "two operators of one name": (
        lambda r: [s.group_by("driver", MINUTE, name="one").agg(n=sb.count()) for s in [stream(r)] * 2],
        "two parts of the flow are called 'one'",
    ),
    "two sources of one name": (
        lambda r: [job.source(r.frame(), name="rides") for job in [sb.Job("rides", state=r.state)] * 2],
        "two parts of the flow are called 'rides'",
    ),
    "streams of two jobs": (
        lambda r: stream(r).join(stream(r), on="driver", within=sb.between("0s", "1 minute")),
        "different flows",
    ),
    "two sinks of one name": (
        lambda r: stream(r).group_by("driver", MINUTE).agg(n=sb.count()).write(print, name="a").write(print, name="a"),
        "two sinks",
    ),
    "random keys": (lambda r: stream(r).group_by(F.rand().alias("k"), MINUTE).agg(n=sb.count()), "computed again"),
    "random inputs": (lambda r: stream(r).group_by("driver", MINUTE).agg(n=sb.sum(F.rand())), "computed again"),
    "random conditions": (
        lambda r: stream(r).group_by("driver", MINUTE).agg(n=sb.count(where="rand() > 0.5")),
        "computed again",
    ),
    "a sample": (
        lambda r: (
            sb.Job("rides", state=r.state)
            .source(r.frame().sample(0.5), watermark=("ts", "1 minute"))
            .group_by("driver", MINUTE)
            .agg(n=sb.count())
        ),
        "computed again",
    ),
    "an input that multiplies rows": (
        lambda r: stream(r).group_by("driver", MINUTE).agg(n=sb.sum(F.explode(F.array("cents", "cents")))),
        "several rows from one",
    ),
    "a sorted stream": (
        lambda r: (
            sb.Job("rides", state=r.state)
            .source(r.frame().sort("ts"), watermark=("ts", "1 minute"))
            .group_by("driver", MINUTE)
            .agg(n=sb.count())
        ),
        "Sorting is not supported",
    ),
    "a column named like one of ours": (
        lambda r: stream(r).with_columns(_Time="ts").group_by("driver", MINUTE).agg(n=sb.count()),
        "'_Time' is reserved",
    ),
    "a source with a column named like weights": (
        lambda r: sb.Job("rides", state=r.state).source(r.frame().withColumn("_weight", F.lit(1))),
        "'_weight' is reserved",
    ),
    "a key named like an input": (
        lambda r: stream(r).group_by(F.col("driver").alias("_A0"), MINUTE).agg(n=sb.sum("cents")),
        "'_A0' is reserved",
    ),
    "a key with a collation": (
        lambda r: stream(r).group_by(F.expr("driver collate UTF8_LCASE").alias("k"), MINUTE).agg(n=sb.count()),
        "grouped by their bytes",
    ),
    "a key with a collation inside": (
        lambda r: stream(r).group_by(F.expr("array(driver collate UTF8_LCASE) as k"), MINUTE).agg(n=sb.count()),
        "grouped by their bytes",
    ),
    "a key without equality": (
        lambda r: stream(r).group_by(F.expr("struct(parse_json(driver)) as k"), MINUTE).agg(n=sb.count()),
        "cannot be compared",
    ),
    "a key that is a map": (
        lambda r: stream(r).group_by(F.create_map("driver", "cents").alias("k"), MINUTE).agg(n=sb.count()),
        "cannot be part of a key",
    ),
    "two columns of the event time's name": (
        lambda r: (
            sb.Job("rides", state=r.state)
            .source(r.frame().withWatermark("ts", "1 minute").withColumn("x", F.lit(1)).withColumnRenamed("x", "TS"))
            .group_by("driver", MINUTE)
        ),
        "two columns",
    ),
    "an event time without zone": (
        lambda r: sb.Job("rides", state=r.state).source(
            r.frame().withColumn("wall", F.col("ts").cast("timestamp_ntz")), watermark=("wall", "1 minute")
        ),
        "timestamp_ntz",
    ),
    "a negative trigger": (lambda r: r.job().start(processing_time="-1 second"), "negative"),
    "a table inside the state": (
        lambda r: (
            stream(r).group_by("driver", MINUTE).agg(n=sb.count()).write("parquet", path=str(r.state / "rides" / "out"))
        ),
        "and the state overlap",
    ),
    "a table around the state": (
        lambda r: stream(r).group_by("driver", MINUTE).agg(n=sb.count()).write("parquet", path=str(r.folder)),
        "and the state overlap",
    ),
    "files overwritten in another sink's table": (
        lambda r: (
            stream(r)
            .group_by("driver", MINUTE)
            .agg(n=sb.count())
            .write("parquet", path=str(r.out), name="a")
            .write("csv", path=str(r.out), mode="overwrite", name="b")
        ),
        "the overwritten files of sink b and the table of sink a overlap",
    ),
    "two tables in one place": (
        lambda r: (
            stream(r)
            .group_by("driver", MINUTE)
            .agg(n=sb.count())
            .write("parquet", path=str(r.out), name="a")
            .write("parquet", path=f"{r.out}/", name="b")
        ),
        "write to the same target",
    ),
    "a number as a condition behind an operator": (
        lambda r: stream(r).group_by("driver", MINUTE).agg(n=sb.count()).where("n"),
        "must be a boolean",
    ),
    "a watermark without its delay": (
        lambda r: sb.Job("rides", state=r.state).source(r.frame(), watermark="ts"),  # type: ignore[arg-type]
        "how late its rows may be",
    ),
    "a column behind an operator that we lack": (
        lambda r: stream(r).group_by("driver", MINUTE).agg(n=sb.count()).where(F.size(F.sentences("driver")) > 1),
        "the function sentences",
    ),
    "a window on text": (
        lambda r: stream(r).group_by("driver", sb.tumbling("1 minute", on="status")).agg(n=sb.count()),
        "must be a timestamp column",
    ),
    "a function with a path": (
        lambda r: stream(r).group_by("driver", MINUTE).agg(n=sb.count()).write(print, path="x"),
        "path",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
def test_a_mistake_is_found_before_anything_is_written(rides: Any, mistake: str) -> None:
    rides.input.mkdir()
    make, words = MISTAKES[mistake]
    with pytest.raises(InputError) as caught:
        make(rides)
    assert words in str(caught.value)
    assert caught.value.fix or caught.value.where
    assert os.listdir(rides.folder) == ["in"]  # noqa: PTH208 - names alone


def test_a_job_and_its_streams_answer_names_of_sparks_with_ours(rides: Any) -> None:
    rides.input.mkdir()
    source = stream(rides)
    for one, name, ours in (
        (source, "groupBy", "group_by"),
        (source.job, "writeStream", "write"),
        (source, "show", "write"),
    ):
        with pytest.raises(AttributeError, match=ours):
            getattr(one, name)
        assert not hasattr(one, name)
    assert "\n" not in repr(source)


def test_a_job_without_a_sink_is_found_by_explain(rides: Any) -> None:
    rides.input.mkdir()
    job = sb.Job("rides", state=rides.state)
    source = job.source(rides.frame(), watermark=("ts", "1 minute"))
    source.group_by("driver", MINUTE).agg(n=sb.count())
    with pytest.raises(InputError, match="no sink"):
        job.explain()
    assert not rides.state.exists()


def test_a_table_that_cannot_be_written_is_refused_before_a_run_opens(rides: Any) -> None:
    rides.add_files(1)
    rides.out.write_text("a file where the folder should be")
    with pytest.raises(StoreNotWritableError):
        rides.run()
    assert not (rides.state / "rides").exists()


def test_an_event_time_may_have_any_name(rides: Any) -> None:
    rides.input.mkdir()
    job = sb.Job("rides", state=rides.state)
    frame = rides.frame().withColumnRenamed("ts", "event.time")
    source = job.source("rides", frame, watermark=("`event.time`", "1 minute"))
    source.group_by("driver", MINUTE).agg(n=sb.count()).write("parquet", path=str(rides.out))
    assert "event time event.time" in job.explain()


def test_names_that_cannot_be_part_of_a_path_are_refused(rides: Any) -> None:
    rides.input.mkdir()
    for make in (
        lambda: sb.Job("../rides"),
        lambda: stream(rides).group_by("driver", MINUTE, name="per minute"),
        lambda: sb.Job("rides").source(rides.frame(), name="a/b"),
    ):
        with pytest.raises(InvalidNameError):
            make()


def test_an_operator_without_a_name_gets_one_from_what_it_is_never_from_its_place(rides: Any) -> None:
    rides.input.mkdir()

    def name(*, minutes: int = 1, key: str = "driver") -> str:
        window = sb.tumbling(f"{minutes} minutes")
        found: str = stream(rides).group_by(key, window).agg(n=sb.count()).operator_id
        return found

    assert name() == name()
    assert len({name(), name(minutes=2), name(key="status")}) == 3


def test_a_changed_operator_or_source_is_refused_before_a_run_opens(rides: Any) -> None:
    rides.add_files(1)
    rides.run()
    head = rides.record().epoch

    def changed(*, source: str = "rides", operator: str = "per_minute", minutes: int = 1) -> None:
        job = sb.Job("rides", state=rides.state, spark=rides.spark)
        stream = job.source(rides.frame(), name=source, watermark=("ts", "1 minute"))
        grouped = stream.group_by("driver", sb.tumbling(f"{minutes} minutes"), name=operator)
        grouped.agg(
            trips=sb.count(), total=sb.sum("cents"), fares=sb.count("fare"), ok=sb.count(where="status = 'ok'")
        ).write("parquet", path=str(rides.out), name="minutes")
        job.start(available_now=True)

    for arguments in ({"source": "other"}, {"operator": "renamed"}, {"minutes": 2}):
        with pytest.raises(InputError):
            changed(**arguments)
    assert rides.record().epoch == head


def test_a_table_that_knows_more_than_the_state_is_refused(rides: Any) -> None:
    rides.add_files(3)
    rides.run()
    rides.state.rename(rides.folder / "moved")
    with pytest.raises(InputError, match="the job's log ends at 0"):
        rides.run()
    assert not rides.state.exists()


def test_spark_must_be_new_enough_and_classic() -> None:
    check_version("4.1.0.dev1")
    with pytest.raises(InputError, match=r"4\.0\.1 is older"):
        check_version("4.0.1")

    class RemoteSession:
        pass

    RemoteSession.__module__ = "pyspark.sql.connect.session"
    with pytest.raises(InputError, match="Spark Connect"):
        check_session(RemoteSession())


def test_a_machine_without_java_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statebed.java.find_java", lambda: None)
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    with pytest.raises(JavaMissingError, match="Java 17 or newer") as missing:
        _ = sb.Job("rides").spark
    assert "apt-get install openjdk-17" in missing.value.fix
