"""The job of the fault tests: two sources, an interval join, a windowed sum, a process; and trouble inside its tasks.

Executors import this module, so it needs nothing but statebed and Spark. An order of trouble is a file in a folder that
every process of the test sees; the one task that takes it away does what its name says, in the middle of its work:

    exit            the Python worker ends in the middle of its task
    kill-worker     the Python worker dies by SIGKILL
    kill-executor   the executor dies by SIGKILL, with the worker and the shuffle files that it serves; only in a task
                    that two executors of one core come to when others of its stage have ended
    sleep           the task takes so long that Spark starts a second attempt beside it, and ends this one
"""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext

import statebed as sb

TROUBLE = "FAULTS_TROUBLE"
"""The environment variable that names the folder of orders."""
SLEEP_SECONDS = 100.0
LATE_PARTITION = 2
DELAY = "1 minute"
ORDERS = "order_id bigint, customer string, amount bigint, ordered_at timestamp"
PAYMENTS = "order_id bigint, paid bigint, paid_at timestamp"


def suffer() -> None:
    """Do what an order says, if there is one and no other task was quicker."""
    place = os.environ.get(TROUBLE)
    for order in sorted(Path(place).glob("*.order")) if place else ():
        kind = order.name.partition(".")[0]
        if kind == "kill-executor" and _partition() < LATE_PARTITION:
            continue
        try:
            order.rename(order.with_suffix(".done"))
        except FileNotFoundError:
            continue
        _TROUBLES[kind](order)


def _exit(_: Path) -> None:
    os._exit(3)  # an error raised here would be the user's own, which no repetition mends


def _kill_worker(_: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_executor(_: Path) -> None:
    daemon = os.getppid()  # forks the workers; its parent is the executor
    os.kill(int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)
    time.sleep(SLEEP_SECONDS)  # the executor's end takes this process with it


def _sleep(order: Path) -> None:
    time.sleep(SLEEP_SECONDS)
    order.with_suffix(".woke").touch()


_TROUBLES = {"exit": _exit, "kill-worker": _kill_worker, "kill-executor": _kill_executor, "sleep": _sleep}


def _partition() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


class Running(sb.ProcessKey):
    """Running total that each customer has paid up to each minute; order matters, so a lost or repeated row shows for
    ever.
    """

    total = sb.ValueState("paid bigint", ttl="1 day")
    output = "customer string, branch bigint, minute timestamp, payments bigint, paid bigint, running bigint"

    def on_rows(self, key: Any, rows: Any, state: Any, ctx: Any) -> Iterator[dict[str, Any]]:
        suffer()
        for row in rows:
            before = state.total.get()
            running = row["paid"] + (before["paid"] if before else 0)
            state.total.put(paid=running)
            yield {
                "customer": key,
                "branch": row["branch"],
                "minute": row["window_start"],
                "payments": row["payments"],
                "paid": row["paid"],
                "running": running,
            }


def build(orders: Any, payments: Any) -> tuple[Any, Any]:
    """The operators over both streams: the sum of each minute, and what came together so far."""
    matched = payments.join(orders, on="order_id", within=sb.between("-2 minutes", "0s"), name="matched")
    # Each level has keys of its own, so that rows go from every subtask of one to every subtask of the next.
    minutes = matched.group_by("customer", "order_id % 3 as branch", sb.tumbling("1 minute"), name="minutes").agg(
        payments=sb.count(), paid=sb.sum("paid")
    )
    return minutes, minutes.key_by("customer", name="running").process(Running())


def build_of_groups(orders: Any, *, sketches: bool) -> tuple[Any, Any]:
    """The same of one stream, whose rows the JVM adds up: with sketches groups become pieces, else they are placed."""
    more = {"orders": sb.approx_count_distinct("order_id")} if sketches else {}
    minutes = orders.group_by("customer", "order_id % 3 as branch", sb.tumbling("1 minute"), name="minutes").agg(
        payments=sb.count(), paid=sb.sum("amount"), **more
    )
    return minutes, minutes.key_by("customer", name="running").process(Running())
