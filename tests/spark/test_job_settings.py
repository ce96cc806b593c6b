"""Settings reach the job that they are meant for, from wherever they are given."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import statebed as sb
from statebed.errors import EpochTimeoutError, InputError, UnknownSettingError

PREFIX = "spark.statebed."
LARGE_TYPES = "spark.sql.execution.arrow.useLargeVarTypes"


@pytest.fixture
def conf(spark: SparkSession) -> Iterator[Any]:
    yield spark.conf
    for key in [key for key in spark.conf.getAll if key.startswith((PREFIX, LARGE_TYPES))]:
        spark.conf.unset(key)


def counted(rides: Any, **arguments: Any) -> sb.Job:
    job = sb.Job("rides", spark=rides.spark, **arguments)
    source = job.source(rides.frame(), name="rides", watermark=("ts", "1 minute"))
    results = source.group_by("driver", sb.tumbling("1 minute"), name="per_minute").agg(trips=sb.count())
    results.write("parquet", path=str(rides.out), name="minutes")
    return job


def test_a_job_is_set_up_by_sparks_configuration_and_a_keyword_goes_first(rides: Any, conf: Any) -> None:
    rides.input.mkdir()
    conf.set(f"{PREFIX}state", str(rides.folder / "by-spark"))
    conf.set(f"{PREFIX}memory", "1g")
    conf.set(f"{PREFIX}parallelism", "3")
    text = counted(rides).explain()
    assert str(rides.folder / "by-spark") in text
    assert "3 subtasks" in text
    assert "1 GiB per host: 512 MiB for the host cache, 256 MiB for each of 2 task slots" in text
    text = counted(rides, state=rides.state, memory="2g", settings={"cache_share": 0.25}).explain()
    assert str(rides.state) in text
    assert "2 GiB per host: 512 MiB for the host cache, 768 MiB for each of 2 task slots" in text


def test_the_session_of_a_source_may_say_where_the_state_is(rides: Any, conf: Any) -> None:
    rides.input.mkdir()
    conf.set(f"{PREFIX}state", str(rides.folder / "by-spark"))
    job = sb.Job("rides")
    source = job.source(rides.frame(), watermark=("ts", "1 minute"))
    source.group_by("driver", sb.tumbling("1 minute")).agg(n=sb.count()).write("parquet", path=str(rides.out))
    assert str(rides.folder / "by-spark") in job.explain()


def test_a_misspelt_setting_is_found_before_anything_is_written(rides: Any, conf: Any) -> None:
    with pytest.raises(UnknownSettingError, match="cach_share"):
        counted(rides, state=rides.state, settings={"cach_share": 0.5})
    conf.set(f"{PREFIX}atempts", "3")
    with pytest.raises(UnknownSettingError) as caught:
        counted(rides, state=rides.state)
    assert caught.value.where == "Spark configuration spark.statebed.atempts"
    assert "'attempts'" in caught.value.fix
    assert not rides.state.exists()


@pytest.mark.parametrize(("memory", "words"), [("8m", "the minimum is 16 MiB"), ("999t", "more than a host has")])
def test_a_memory_that_cannot_work_is_refused(rides: Any, memory: str, words: str) -> None:
    rides.input.mkdir()
    with pytest.raises(InputError, match=words):
        counted(rides, state=rides.state, memory=memory).start(available_now=True)
    assert not rides.state.exists()


def test_the_file_of_the_working_folder_counts(rides: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rides.input.mkdir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "statebed.toml").write_text('state = "kept"\nparallelism = 5\n')
    text = counted(rides).explain()
    assert str(tmp_path / "kept") in text
    assert "5 subtasks" in text


def test_a_job_keeps_as_many_epochs_as_its_settings_say(rides: Any) -> None:
    rides.add_files(5)
    query = counted(
        rides,
        state=rides.state,
        settings={"retained_epochs": 2, "reader_grace": "0 seconds", "collect_every": 1, "cache_folder": rides.folder},
    ).start(available_now=True)
    assert query.await_termination(120)
    record = rides.record()
    assert record.min_epoch >= record.epoch - 2


def test_p2_an_epoch_that_takes_too_long_is_cancelled_and_nothing_of_it_is_committed(rides: Any) -> None:
    rides.add_files(1)

    @F.udf("string", useArrow=False)
    def slowly(driver: str) -> str:
        time.sleep(0.2)
        return driver

    job = sb.Job("rides", state=rides.state, spark=rides.spark, settings={"epoch_timeout": "1 second"})
    frame = rides.frame().withColumn("driver", slowly("driver"))
    source = job.source(frame, name="rides", watermark=("ts", "1 minute"))
    source.group_by("driver", sb.tumbling("1 minute")).agg(n=sb.count()).write("parquet", path=str(rides.out))
    query = job.start(available_now=True)
    with pytest.raises(EpochTimeoutError, match="was cancelled after 1 s") as caught:
        query.await_termination(120)
    assert "epoch_timeout" in caught.value.fix
    assert rides.record().epoch == query.run  # the run's start alone


def test_arrows_large_types_in_the_users_session_change_nothing(rides: Any, conf: Any) -> None:
    rides.add_files(2, rows=20)
    packed = F.expr("named_struct('text', array(driver), 'bytes', map('of', cast(status as binary)))")
    outcomes = []
    for large in ("false", "true"):
        conf.set(LARGE_TYPES, large)
        state = rides.folder / large
        given: list[str] = []
        job = sb.Job("rides", spark=rides.spark, state=state, parallelism=2)
        rows = job.source(rides.frame().withColumn("packed", packed), name="rides", watermark=("ts", "1 minute"))
        minutes = rows.group_by("driver", sb.tumbling("1 minute"), name="minutes").agg(last=sb.max("status"))
        # Rows of the source pass the level of the windows.
        joined = rows.join(minutes.select("driver", "last"), on="driver", window=sb.tumbling("1 minute"), name="joined")
        joined.write(lambda df, _, given=given: given.extend(map(repr, df.collect())), name="given")
        joined.transform(lambda df: df.select("driver", "packed")).write(
            "parquet", path=str(rides.folder / f"out-{large}"), name="made"
        )
        assert job.start(available_now=True).await_termination(120)
        made = sb.read_table(str(rides.folder / f"out-{large}")).to_pylist()
        reader = rides.spark.read.format("statebed").option("job", "rides").option("operator", "minutes")
        kept = reader.load(str(state)).collect()
        outcomes.append([sorted(given), sorted(map(repr, made)), sorted(map(repr, kept))])
    assert all(outcomes[0])
    assert outcomes[0] == outcomes[1]
