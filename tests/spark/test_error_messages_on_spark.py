"""Error messages of jobs stay as reviewed: the sections of docs/reference/error-messages.md that need Spark."""

import re

from error_messages import reviewed, spark_part
from pyspark.sql import SparkSession

_ID = re.compile(r"#\d+L?")


def test_the_page_of_error_messages_is_what_jobs_print(spark: SparkSession) -> None:
    written, accepted = spark_part(spark)
    assert accepted == [], "these mistakes raised no error of statebed"
    page = _ID.sub("#", reviewed()[1])  # Spark numbers its columns anew in each session
    assert page == _ID.sub("#", written), "run: scripts/with-java python tests/error_messages.py --spark, and review"
