"""Preparation of a Spark for its jobs: classes are looked up once, and Hadoop's settings are sent in a shorter form."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from py4j.java_gateway import JavaPackage, JVMView
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import statebed as sb
from statebed.spark.hadoop_settings import forget_sources
from statebed.spark.java_classes import java_class


def test_steps_of_pyspark_look_up_no_class_once_there_is_a_job(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sb.Job("any", state=tmp_path, spark=spark)
    names: list[str] = []

    def noted(look_up: Callable[[Any, str], object]) -> Callable[[Any, str], object]:
        def look_up_and_note(place: Any, name: str) -> object:
            names.append(name)
            return look_up(place, name)

        return look_up_and_note

    for place in (JVMView, JavaPackage):
        monkeypatch.setattr(place, "__getattr__", noted(place.__getattr__))
    rows = spark.range(3).select((F.col("id") + F.lit(1)).alias("n")).where("n > 1")
    assert SparkSession.getActiveSession() is not None
    assert rows.columns == ["n"]
    with pytest.raises(AnalysisException, match="cannot be resolved"):
        rows.select("missing")
    assert names == []


def test_a_class_that_does_not_exist_is_looked_up_again(spark: SparkSession) -> None:
    assert isinstance(java_class(spark, "org.example.Missing"), JavaPackage)
    assert "org.example.Missing" not in vars(spark._jvm)
    assert java_class(spark, "java.util.ArrayList") is java_class(spark.sparkContext, "java.util.ArrayList")


def test_hadoop_settings_are_sent_without_the_files_they_come_from(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    usual = jvm.org.apache.hadoop.conf.Configuration()
    forget_sources(spark)  # the fixture has done it already
    sent = spark._jsparkSession.sessionState().newHadoopConf()
    assert usual.size() > 1000
    assert sent.getPropsWithPrefix("").keySet().containsAll(usual.getPropsWithPrefix("").keySet())
    assert sent.getPropertySources("fs.defaultFS") is None
    assert written(jvm, sent) < written(jvm, usual) / 1.5


def written(jvm: Any, settings: Any) -> int:
    """Return how many bytes the settings are when they are sent."""
    stream = jvm.java.io.ByteArrayOutputStream()
    settings.write(jvm.java.io.DataOutputStream(stream))
    return int(stream.size())
