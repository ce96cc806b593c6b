"""Classes of the JVM are looked up once per Spark."""

from pathlib import Path

import pytest
from py4j.java_gateway import JavaPackage, JVMView
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import statebed as sb
from statebed.spark.java_classes import java_class


def test_steps_of_pyspark_look_up_no_class_once_there_is_a_job(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sb.Job("any", state=tmp_path, spark=spark)
    names: list[str] = []
    look_up = JVMView.__getattr__

    def noted(view: JVMView, name: str) -> object:
        names.append(name)
        return look_up(view, name)

    monkeypatch.setattr(JVMView, "__getattr__", noted)
    rows = spark.range(3).select((F.col("id") + F.lit(1)).alias("n")).where("n > 1")
    assert SparkSession.getActiveSession() is not None
    assert names == []
    assert rows.columns == ["n"]


def test_a_class_that_does_not_exist_is_looked_up_again(spark: SparkSession) -> None:
    assert isinstance(java_class(spark, "org.example.Missing"), JavaPackage)
    assert "org.example.Missing" not in vars(spark._jvm)
    assert java_class(spark, "java.util.ArrayList") is java_class(spark.sparkContext, "java.util.ArrayList")
