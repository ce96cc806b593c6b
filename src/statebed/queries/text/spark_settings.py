"""Settings of Spark's session that SQL text changes: `SET 'spark.sql.session.timeZone' = 'UTC'`."""

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from statebed.sql.source_text import SqlText
from statebed.sql.statements import SetOption

SPARK_PREFIX = "spark."


def set_spark(source: SqlText, spark: SparkSession, option: SetOption) -> None:
    """Change the configuration of Spark's session; raise InputError if Spark refuses it."""
    try:
        spark.conf.set(option.name.text, option.value.text)
    except PySparkException as error:
        raise source.mistake(
            str(error).splitlines()[0], option.span, fix="set it where the Spark session is made"
        ) from error
