"""The job: two Debezium streams in, one table of what each order still owes out."""

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import statebed as sb

ORDERS = "id bigint, customer string, total_cents bigint"
PAYMENTS = "id bigint, order_id bigint, cents bigint"
TABLE = "order_balance"


def balance_job(events: Path, state: Path, target: dict[str, Any], *, spark: SparkSession | None = None) -> sb.Job:
    """Build the job; `target` are the arguments of `write`, such as {"sink": "postgres", "dsn": ...}."""
    job = sb.Job("orders", state=state, spark=spark)
    orders = job.changelog(_envelopes(job.spark, events / "orders", ORDERS), key="id", format="debezium", name="orders")
    payments = job.changelog(
        _envelopes(job.spark, events / "payments", PAYMENTS), key="id", format="debezium", name="payments"
    )
    paid = payments.key_by("order_id", name="paid").agg(payments=sb.count(), paid_cents=sb.sum("cents"))
    balance = orders.join(paid, on=sb.eq("id", "order_id"), how="left", name="balance").select(
        "id as order_id",
        "customer",
        "total_cents",
        "coalesce(payments, 0) as payments",
        "total_cents - coalesce(paid_cents, 0) as open_cents",
        "case when coalesce(paid_cents, 0) >= total_cents then 'paid' when payments > 0 then 'partly paid' "
        "else 'open' end as status",
    )
    balance.write(**target, table=TABLE, key="order_id", name="balance_table")
    return job


def _envelopes(spark: SparkSession, folder: Path, columns: str) -> DataFrame:
    """Return the change events of a table, as Debezium writes them for PostgreSQL."""
    row = f"struct<{columns.replace(' ', ':').replace(',:', ',')}>"
    schema = f"before {row}, after {row}, op string, source struct<lsn:bigint>"
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(folder))
