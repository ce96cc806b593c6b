"""Rows that the JVM adds up first give the same results and the same state, and only where that pays."""

from typing import Any

import effort
import pytest
from pyspark.sql import functions as F

import statebed as sb
from statebed.checkpoint import CheckpointLog
from statebed.errors import InputError
from statebed.storage import ScopedStore, get_storage_provider

pytestmark = pytest.mark.filterwarnings("ignore::statebed.errors.UnboundedStateWarning")
AGGREGATES = {
    "n": sb.count(),
    "fares": sb.count("fare"),
    "ok": sb.count(where="status = 'ok'"),
    "total": sb.sum("cents * 4000000000000"),
    "small": sb.sum("cast(cents as int)"),
    "mean": sb.mean("cents"),
    "least": sb.min("fare"),
    "last": sb.max("status"),
    "every": sb.bool_and("cents > 0"),
    "bits": sb.bit_xor("cents"),
    "price": sb.sum("cast(fare as decimal(10, 2))"),
    "prices": sb.mean("cast(fare as decimal(10, 2))", where="status = 'ok'"),
    "early": sb.first("status"),
    "late": sb.last("fare", where="cents > 1000"),
    "dear": sb.max_by("status", "fare"),
    "end": sb.max_by("cents", "status"),
    "cheap": sb.min_by("fare", "cents % 10"),
    "spread": sb.var_samp("cents * 4000000000000"),
    "slope": sb.regr_slope("cents", "length(driver)", where="status = 'ok'"),
}
NESTED = (
    "named_struct('who', if(driver like '%1', null, driver), 'at', array(if(cents % 2 = 0, 0.0d, -0.0d),"
    " if(cents % 3 = 0, double('nan'), null), cents % 2), 'how', array(named_struct('status', status))) as k"
)
SKETCHES = {
    "n": sb.count(),
    "fares_apart": sb.approx_count_distinct("fare"),
    "states": sb.approx_count_distinct("status", precision=6, where="cents > 1000"),
}


def subtasks_of(state: Any) -> list[str]:
    """The metadata of all subtasks at the head."""
    head = CheckpointLog(ScopedStore(get_storage_provider(state), "rides"), "rides").head()
    assert head is not None
    return [one.path for entry in head.operators for one in entry.subtasks]


def job_of(rides: Any, state: Any, below: int) -> sb.Job:
    """One that never adds rows up before, or always."""
    settings = {"preaggregate_below": below, "compaction_every": 1000}
    return sb.Job("rides", state=state, spark=rides.spark, parallelism=2, settings=settings)


@pytest.mark.parametrize(
    "kind",
    # Forgetting is running with a time to live; sliding windows have the nested key as well, sketches no key.
    [
        pytest.param("windows", marks=pytest.mark.long),
        "sliding",
        pytest.param("running", marks=pytest.mark.long),
        "forgetting",
        pytest.param("all rows", marks=pytest.mark.long),
        "sketches",
        pytest.param("nested", marks=pytest.mark.long),
    ],
)
def test_p6_results_and_state_are_the_same_whether_the_jvm_adds_rows_up_or_not(
    rides: Any, tmp_path: Any, kind: str
) -> None:
    rides.add_files(2)
    late = rides.input / "0002.parquet"
    rides.add_files(1)
    rides.spark.read.parquet(str(rides.input / "0000.parquet")).write.parquet(str(tmp_path / "late"))
    found = next((tmp_path / "late").glob("part-*.parquet"))
    late.write_bytes(found.read_bytes())  # the first rows again, by now too late
    outcomes = []
    for below in (0, 1):
        given: list[Any] = []
        job = job_of(rides, tmp_path / f"state{below}", below)
        stream = job.source(rides.frame(), name="rides", watermark=("ts", "10 seconds"))
        if kind == "windows":
            results = stream.group_by("driver", sb.tumbling("1 minute"), name="op").agg(**AGGREGATES)
        elif kind == "sliding":
            window = sb.sliding("2 minutes", "30 seconds", offset="7 seconds")
            results = stream.group_by(F.upper("driver").alias("d"), NESTED, window, name="op").agg(**AGGREGATES)
        elif kind == "sketches":
            results = stream.group_by(sb.tumbling("1 minute"), name="op").agg(**SKETCHES)
        elif kind == "nested":
            results = stream.group_by(NESTED, sb.tumbling("1 minute"), name="op").agg(**AGGREGATES)
        elif kind == "all rows":
            results = stream.group_by(sb.tumbling("1 minute"), name="op").agg(**AGGREGATES)
        else:
            ttl = "90 seconds" if kind == "forgetting" else None
            results = stream.key_by("driver", name="op").agg(ttl=ttl, **AGGREGATES)
        results.write(lambda df, epoch, given=given: given.append((epoch, df.collect())), name="kept")
        query = job.start(available_now=True)
        assert query.await_termination(180)
        progress = query.recent_progress
        batches = [one for one in progress if one.batch_id is not None]
        assert {one.preaggregated for one in batches} == {below == 1}
        assert sum(one.rows_in for one in progress) == 360
        if kind != "running":
            assert sum(one.rows_late for one in progress) > 0
        counted = [(one.rows_in, one.rows_late, one.rows_out) for one in progress]
        # Names are digests of bytes: the same names are the same state.
        outcomes.append((sorted(map(repr, given)), counted, subtasks_of(tmp_path / f"state{below}")))
    assert outcomes[0] == outcomes[1]


def test_p6_rows_of_several_sources_are_added_up_and_each_source_is_seen(rides: Any, tmp_path: Any) -> None:
    rides.add_files(2)
    outcomes = []
    for below in (0, 1):
        given: list[Any] = []
        job = job_of(rides, tmp_path / f"state{below}", below)
        early = job.source(rides.frame(), name="early", watermark=("ts", "1 minute"))
        moved = rides.frame().withColumn("ts", F.expr("ts - interval 90 seconds"))
        behind = job.source(moved, name="behind", watermark=("ts", "2 minutes"))
        window = sb.tumbling("1 minute")
        results = early.union(behind).group_by("driver", window, name="op").agg(n=sb.count(), total=sb.sum("cents"))
        results.write(lambda df, _, given=given: given.extend(map(tuple, df.collect())), name="rows")
        query = job.start(available_now=True)
        assert query.await_termination(180)
        progress = query.recent_progress
        assert any(one.preaggregated for one in progress) == bool(below)
        seen = [(one.rows_in, one.rows_late, one.watermark_us) for one in progress]
        outcomes.append((sorted(map(repr, given)), seen, subtasks_of(tmp_path / f"state{below}")))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0]


def test_p6_text_is_the_same_whatever_its_collation_when_the_jvm_adds_rows_up(rides: Any, tmp_path: Any) -> None:
    rides.add_files(1)
    named = rides.frame().withColumn("name", F.expr("collate(if(cents % 2 = 0, upper(driver), driver), 'UTF8_LCASE')"))
    kept = []
    for below in (0, 1):
        job = sb.Job("rides", state=tmp_path / f"{below}", spark=rides.spark, settings={"preaggregate_below": below})
        stream = job.source(named, name="rides", watermark=("ts", "1 minute"))
        stream.key_by("driver", name="op").agg(n=sb.count(), least=sb.min("name")).write(
            lambda *_: None, name="nothing"
        )
        query = job.start(available_now=True)
        assert query.await_termination(180)
        kept.append(subtasks_of(tmp_path / f"{below}"))
    assert kept[0] == kept[1]


@pytest.mark.parametrize(("time", "below"), effort.diagonals([2**63 - 7, -(2**63) + 5], [0, 1]))
def test_a_time_whose_window_does_not_fit_is_refused_whoever_adds_rows_up(rides: Any, time: int, below: int) -> None:
    rides.add_files(1)
    job = job_of(rides, rides.state, below)
    far = rides.frame().withColumn("ts", F.expr(f"if(cents % 2 = 0, ts, timestamp_micros({time}))"))
    stream = job.source(far, name="rides", watermark=("ts", "1 minute"))
    stream.group_by("driver", sb.tumbling("1 minute"), name="op").agg(n=sb.count()).write(lambda *_: None, name="none")
    with pytest.raises(InputError, match="far from 1970"):
        job.start(available_now=True).await_termination(180)


def test_rows_are_added_up_in_the_jvm_only_where_few_groups_are_left(rides: Any, tmp_path: Any) -> None:
    rides.add_files(2, rows=1500)

    def added_up(key: str, *, native: bool = False, **aggregates: Any) -> list[bool]:
        place = tmp_path / f"{key}{len(aggregates)}{native}"
        job = sb.Job("rides", state=place, spark=rides.spark, parallelism=2, settings={"native_scan": native})
        stream = job.source(rides.frame(), name="rides", watermark=("ts", "1 minute"))
        stream.key_by(key, name="op").agg(n=sb.count(), **aggregates).write(lambda *_: None, name="nothing")
        query = job.start(available_now=True)
        assert query.await_termination(180)
        return [one.preaggregated for one in query.recent_progress if one.batch_id is not None]

    assert added_up("driver") == [False, True]
    assert added_up("fare") == [False, False]
    # Sums of doubles are exact here, which the JVM's are not.
    assert added_up("driver", total=sb.sum("fare")) == [False, False]
    # Reading the files in the tasks costs less.
    assert added_up("driver", native=True) == [False, False]
