"""Queries that crash, restart and rescale in the middle give the rows of an undisturbed query of Spark."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from spark.queries.case import Case
from spark.queries.cases import ALL, CORE
from spark.queries.harness import AnyOrder, Batches, by_spark, by_statebed, comparable, configured

import statebed as sb
from statebed.checkpoint.run import Run

pytestmark = pytest.mark.filterwarnings("ignore::statebed.UnboundedStateWarning")
IN_SHORT = [case for case in CORE if case.name == "two_sources_two_delays"]
FAILING_EPOCH = 3


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> AnyOrder:
    return AnyOrder.written(spark, tmp_path_factory.mktemp("tables"), seed=5, files=3)


def interrupted(df: DataFrame, mode: str, state: Path, monkeypatch: pytest.MonkeyPatch) -> Batches:
    """Run a query that is interrupted three times: before a commit, before its output is published, and by a stop."""
    found: Batches = {}
    failures = {"commit", "publish"}
    commit = Run.commit

    def failing_commit(run: Run, draft: object) -> object:
        if "commit" in failures and run.next_epoch == FAILING_EPOCH:
            failures.discard("commit")
            raise OSError("the driver is gone before the commit")
        return commit(run, draft)  # type: ignore[arg-type]

    def take(rows: DataFrame, epoch: int) -> None:
        if "publish" in failures and epoch > FAILING_EPOCH:
            failures.discard("publish")
            raise OSError("the driver is gone before the output is written")
        found[epoch] = comparable(rows)

    monkeypatch.setattr(Run, "commit", failing_commit)
    for parallelism in (2, 3, 1):
        writer = sb.write_stream(df, parallelism=parallelism).outputMode(mode).foreachBatch(take)
        query = writer.option("checkpointLocation", str(state)).trigger(availableNow=True).start()
        try:
            assert query.await_termination(120), "the query has not ended after two minutes"
        except (OSError, sb.StatebedError):
            continue
    monkeypatch.undo()
    assert "commit" not in failures
    return found


def check(case: Case, tables: AnyOrder, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tables.of(ordered=case.ordered)
    with configured(source.spark, case.settings):
        df = case.build(source)
        ours = interrupted(df, case.mode, state, monkeypatch)
        theirs = by_spark(df, case.mode)
    assert [rows for _, rows in sorted(ours.items()) if rows] == list(theirs.values())


@pytest.mark.parametrize("case", IN_SHORT, ids=str)
def test_an_interrupted_query_gives_the_rows_of_spark(
    case: Case, tables: AnyOrder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(case, tables, tmp_path / "state", monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("case", ALL[::2], ids=str)
def test_every_second_query_interrupted_gives_the_rows_of_spark(
    case: Case, tables: AnyOrder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(case, tables, tmp_path / "state", monkeypatch)


def test_the_watermark_of_spark_survives_a_restart(tables: AnyOrder, tmp_path: Path) -> None:
    df = IN_SHORT[0].build(tables.shuffled)
    by_statebed(df, "append", state=tmp_path / "state")
    job = sb.Job("query", state=tmp_path / "state", spark=tables.shuffled.spark)
    assert len(job.checkpoints(limit=50)) > 1
