"""The job: payments and rules in, alerts out. Rules are changed by messages, while the job runs."""

from pathlib import Path

from pyspark.sql import SparkSession

import statebed as sb

PAYMENTS, RULES, ALERTS = "payments", "fraud-rules", "alerts"
PAYMENT_COLUMNS = "payment bigint, card string, country string, cents bigint, ts timestamp"
RULE_COLUMNS = "rule string, only_country string, min_cents bigint, is_retired boolean"


def fraud_job(servers: str, state: Path, *, spark: SparkSession | None = None) -> sb.Job:
    """Build the job; the newest message of a rule in the control topic is the rule, or retires it."""
    job = sb.Job("fraud", state=state, spark=spark)
    payments = job.kafka(
        PAYMENTS,
        servers=servers,
        schema=PAYMENT_COLUMNS,
        event_time=("ts", "1 minute"),
        name="payments",
        malformed="dead_letters",
    )
    payments.dead_letters.write("kafka", servers=servers, topic=f"{PAYMENTS}-malformed", name="malformed")
    messages = job.kafka(
        RULES, servers=servers, schema=RULE_COLUMNS, metadata=["timestamp"], event_time="timestamp", name="rules"
    )
    rules = messages.broadcast("rule", deleted="is_retired")
    alerts = payments.lookup(
        rules,
        condition="cents >= min_cents and (only_country is null or country = only_country)",
        name="flagged",
    )
    rows = alerts.select("payment", "card", "country", "cents", "ts", "rule", "min_cents")
    rows.write("kafka", servers=servers, topic=ALERTS, key="card", name="alerts")
    return job
