"""Flag payments by rules that change while the job runs. Without --servers, a broker is started on loopback."""

import argparse
import os
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import statebed as sb
from examples.fraud.job import PAYMENTS, RULES, fraud_job
from examples.fraud.traffic import FIRST_RULES, SECOND_RULES, alerts, create_topics, payments, send
from scripts.kafka_broker import KafkaBroker, class_path

WAIT_SECONDS = 120


def main() -> None:
    """Start the job, send payments, change the rules, send more, and count the alerts."""
    parser = argparse.ArgumentParser(prog="python -m examples.fraud", description=__doc__)
    parser.add_argument("--servers", help="brokers, for example localhost:9092")
    parser.add_argument("--state", type=Path, help="folder of the state; default: a temporary one")
    parser.add_argument("--payments", type=int, default=5_000, help="payments before and after the change")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fraud-")))
        servers = arguments.servers or _own_broker(folder, stack)
        create_topics(servers)
        _add_connector()
        query = fraud_job(servers, arguments.state or folder / "state").start()
        first = max((alert["payment"] + 1 for alert in alerts(servers)), default=0)
        for rules in (FIRST_RULES, SECOND_RULES):
            _send_and_wait(query, servers, RULES, rules, "rule")
            _send_and_wait(query, servers, PAYMENTS, payments(first=first, count=arguments.payments), "card")
            first += arguments.payments
            print(f"rules {[rule['rule'] for rule in rules if not rule['is_retired']]}:", end=" ")
            print(dict(Counter(f"{alert['rule']} from {alert['min_cents']}" for alert in alerts(servers))))
        query.stop()


def _send_and_wait(query: sb.Query, servers: str, topic: str, rows: list[dict[str, Any]], key: str) -> None:
    """Send messages, and wait until an epoch has read them: each row reaches the operator once."""
    before = sum(epoch.rows_in for epoch in query.recent_progress)
    send(servers, topic, rows, key=key)
    deadline = time.monotonic() + WAIT_SECONDS
    while sum(epoch.rows_in for epoch in query.recent_progress) < before + len(rows):
        if time.monotonic() > deadline or not query.is_active:
            raise RuntimeError(f"the job does not read {topic}") from query.exception
        time.sleep(0.2)


def _own_broker(folder: Path, stack: ExitStack) -> str:
    broker = KafkaBroker(folder)
    stack.callback(broker.kill)
    broker.start()
    return broker.servers


def _add_connector() -> None:
    """Start Spark with its Kafka connector; elsewhere, set `spark.jars.packages`, see docs/howto/kafka.md."""
    jars = class_path("kafka-source", separator=",")
    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", f"--jars {jars} pyspark-shell")


if __name__ == "__main__":
    main()
