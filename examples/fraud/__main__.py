"""Flag payments by rules that change while the job runs. Without --servers, a broker is started on loopback."""

import argparse
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

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
        state = arguments.state or folder / "state"
        query = fraud_job(servers, state).start()
        first = max((alert["payment"] + 1 for alert in alerts(servers)), default=0)
        for rules in (FIRST_RULES, SECOND_RULES):
            names = {str(rule["rule"]) for rule in rules if not rule["is_retired"]}
            send(servers, RULES, rules, key="rule")
            _wait(query, names, lambda: _in_force(state))
            before = _payments_read(query)
            send(servers, PAYMENTS, payments(first=first, count=arguments.payments), key="card")
            _wait(query, before + arguments.payments, lambda: _payments_read(query))
            first += arguments.payments
            print(f"rules {sorted(names)}:", end=" ")
            print(dict(Counter(f"{alert['rule']} from {alert['min_cents']}" for alert in alerts(servers))))
        query.stop()


def _in_force(state: Path) -> set[str]:
    """Return the names of the rules in the newest epoch; none before the first one."""
    try:
        rules = sb.read_state(state, operator="flagged", table="rules").to_arrow().to_pylist()
    except sb.StatebedError:
        return set()
    return {rule["rule"] for rule in rules}


def _payments_read(query: sb.Query) -> int:
    return sum(epoch.operators["flagged"].rows_in for epoch in query.recent_progress)


def _wait(query: sb.Query, expected: object, current: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while current() != expected:
        if time.monotonic() > deadline or not query.is_active:
            raise RuntimeError("the job does not read its topics") from query.exception
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
