"""One local Spark with the Kafka connector for all tests of this folder."""

import os
import sys
from collections.abc import Iterator

import pytest
from kafka.server import class_path
from pyspark.sql import SparkSession

from statebed.spark.hadoop_settings import forget_sources


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    session = (
        SparkSession.builder.master("local[2]")
        .appName("statebed kafka tests")
        .config("spark.jars", class_path("kafka-source", "spark-avro", separator=","))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "America/New_York")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    forget_sources(session)
    yield session
    session.stop()
