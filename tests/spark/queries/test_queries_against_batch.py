"""Queries that Spark refuses for streams give the answer of the same query over tables of all rows."""

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from spark.queries.batch_cases import BATCH, IN_SHORT, BatchCase
from spark.queries.harness import Tables, changes_by_statebed, comparable

pytestmark = pytest.mark.filterwarnings("ignore::statebed.UnboundedStateWarning")


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return Tables(spark, tmp_path_factory.mktemp("tables"), files=2).write().close()


@pytest.fixture(scope="module")
def unseen(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return Tables(spark, tmp_path_factory.mktemp("unseen"), seed=4_071, files=6).write().close()


def check(case: BatchCase, tables: Tables, state: Path) -> None:
    theirs = Counter(comparable(case.build(tables.as_tables())))
    assert theirs, "the case compares no rows"
    assert changes_by_statebed(case.build(tables), state=state) == theirs


@pytest.mark.parametrize("case", IN_SHORT, ids=str)
def test_a_query_gives_the_answer_over_all_rows(case: BatchCase, tables: Tables, tmp_path: Path) -> None:
    check(case, tables, tmp_path / "state")


@pytest.mark.long
@pytest.mark.parametrize("case", BATCH, ids=str)
def test_a_query_over_unseen_data_gives_the_answer_over_all_rows(
    case: BatchCase, unseen: Tables, tmp_path: Path
) -> None:
    check(case, unseen, tmp_path / "state")
