"""Queries that Spark refuses for streams give the answer of the same query over tables of all rows."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from spark.queries.batch_cases import BATCH, IN_SHORT, BatchCase
from spark.queries.harness import Tables, changes_by_statebed, comparable

Changes = Counter[tuple[Any, ...]]
pytestmark = pytest.mark.filterwarnings("ignore::statebed.UnboundedStateWarning")


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return Tables(spark, tmp_path_factory.mktemp("tables"), files=2).write().close()


@pytest.fixture(scope="module")
def unseen(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return Tables(spark, tmp_path_factory.mktemp("unseen"), seed=4_071, files=6).write().close()


@pytest.fixture(scope="module")
def in_short(tables: Tables, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Changes]:
    queries = {case.name: case.build(tables) for case in IN_SHORT}
    return changes_by_statebed(queries, state=tmp_path_factory.mktemp("state"))


def check(case: BatchCase, tables: Tables, ours: Changes) -> None:
    theirs = Counter(comparable(case.build(tables.as_tables())))
    assert bool(theirs) != case.is_empty, "a case that compares no rows says so"
    assert ours == theirs


@pytest.mark.parametrize("case", IN_SHORT, ids=str)
def test_a_query_gives_the_answer_over_all_rows(case: BatchCase, tables: Tables, in_short: dict[str, Changes]) -> None:
    check(case, tables, in_short[case.name])


@pytest.mark.long
@pytest.mark.parametrize("case", BATCH, ids=str)
def test_a_query_over_unseen_data_gives_the_answer_over_all_rows(
    case: BatchCase, unseen: Tables, tmp_path: Path
) -> None:
    ours = changes_by_statebed({case.name: case.build(unseen)}, state=tmp_path / "state")
    check(case, unseen, ours[case.name])
