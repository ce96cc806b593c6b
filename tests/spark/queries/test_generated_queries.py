"""Random queries give the rows of Spark in each batch, or are refused by name."""

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession
from spark.queries.generated import generated
from spark.queries.harness import Tables, by_spark, by_statebed, difference

import statebed as sb

pytestmark = [pytest.mark.filterwarnings("ignore::statebed.UnboundedStateWarning"), pytest.mark.long]
QUERIES = 500
PER_TEST = 10


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return Tables(spark, tmp_path_factory.mktemp("tables"), seed=77, files=3, rows=30).write()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(0, QUERIES, PER_TEST))
def test_random_queries_give_the_rows_of_spark_or_are_refused(first: int, tables: Tables, tmp_path: Path) -> None:
    answered, refusals = 0, []
    for seed in range(first, first + PER_TEST):
        query = generated(seed)
        try:
            df = tables.sql(query.sql)
            ours = by_statebed(df, query.mode, state=tmp_path / str(seed))
            theirs = by_spark(df, query.mode)
        except (AnalysisException, StreamingQueryException, sb.InputError) as error:
            refusals.append(str(error))
            continue
        answered += 1
        assert not difference(theirs, ours), query
    assert answered
    named = ("cannot run on statebed", "not supported", "INPUT")
    assert all(any(word in text for word in named) for text in refusals), refusals
