"""`python -m examples.nexmark q5 --events 100000`: run a query and show its first results.

In this process, or with `--spark` as a job on a local Spark.
"""

import argparse
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import pyarrow as pa

from examples.nexmark.queries import QUERIES, RESULT, Query
from examples.nexmark.sources import rows_of
from statebed import testing
from statebed.demo.nexmark import DEFAULT_FIRST_TIME_US, Nexmark
from statebed.errors import UnboundedStateWarning

DISORDER_US = 3_000_000
END = "9999-01-01"
Epochs = Sequence[Mapping[str, pa.Table]]


def main() -> None:
    """Parse, run, print."""
    arguments = _arguments()
    names = list(QUERIES) if arguments.query == "all" else [arguments.query]
    generator = Nexmark(seed=arguments.seed, events_per_second=arguments.rate, out_of_order_us=DISORDER_US)
    for name in names:
        _show(QUERIES[name], generator, arguments)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.nexmark", description=__doc__)
    parser.add_argument("query", choices=[*QUERIES, "all"])
    parser.add_argument("--events", type=int, default=100_000, help="persons, auctions and bids together")
    parser.add_argument("--epochs", type=int, default=10, help="into how many epochs they are cut")
    parser.add_argument("--rate", type=int, default=1000, help="events per second of event time")
    parser.add_argument("--parallelism", type=int, default=1, help="subtasks of each operator")
    parser.add_argument("--seed", type=int, default=1, help="of the generator")
    parser.add_argument("--spark", action="store_true", help="as a job on a local Spark")
    parser.add_argument("--rows", type=int, default=5, help="results to show")
    arguments = parser.parse_args()
    if not 1 <= arguments.epochs <= arguments.events:
        parser.error(f"{arguments.events} events cannot be cut into {arguments.epochs} epochs")
    return arguments


def _show(query: Query, generator: Nexmark, arguments: argparse.Namespace) -> None:
    flow = query.flow()
    edges = [arguments.events * number // arguments.epochs for number in range(arguments.epochs + 1)]
    epochs = [
        rows_of(
            flow.graph.sources,
            generator,
            first=first,
            count=end - first,
            now_us=DEFAULT_FIRST_TIME_US + end * 1_000_000 // arguments.rate,
        )
        for first, end in pairwise(edges)
    ]
    run = _on_spark if arguments.spark else _here
    results, seconds = run(query, epochs, arguments.parallelism)
    print(f"{query.name}  {query.about}")
    print(
        f"{arguments.events:,} events in {arguments.epochs} epochs: {seconds:.2f} s, "
        f"{arguments.events / seconds:,.0f} events/s, {results.num_rows:,} results"
    )
    for row in results.slice(0, arguments.rows).to_pylist():
        print("  " + ", ".join(f"{name}={_brief(value)}" for name, value in row.items()))


def _here(query: Query, epochs: Epochs, parallelism: int) -> tuple[pa.Table, float]:
    """The results, and the seconds that they took."""
    with testing.run(query.flow(), parallelism=parallelism) as run:
        start = time.perf_counter()
        for rows in epochs:
            run.feed_all(rows)
        run.watermark(END)
        return run.table(RESULT), time.perf_counter() - start


def _on_spark(query: Query, epochs: Epochs, parallelism: int) -> tuple[pa.Table, float]:
    """The same; of a changelog the rows that it comes to."""
    from examples.nexmark.on_spark import Events, NexmarkJob  # noqa: PLC0415 - Spark is not needed otherwise

    warnings.simplefilter("ignore", UnboundedStateWarning)
    with tempfile.TemporaryDirectory() as folder:
        events = Events(Path(folder, "events"))
        for number, rows in enumerate(epochs):
            events.add(number, rows)
        job = NexmarkJob((query.name,), Path(folder, "state"), events, parallelism)
        job.job.spark.sparkContext.setLogLevel("ERROR")
        start = time.perf_counter()
        job.run()
        return job.results(query.name), time.perf_counter() - start


def _brief(value: object, longest: int = 32) -> str:
    text = str(value)
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


if __name__ == "__main__":
    main()
