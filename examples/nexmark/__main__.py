"""`python -m examples.nexmark q5 --events 100000`: run a query in this process and show its first results."""

import argparse
import time
from itertools import pairwise

from examples.nexmark.queries import QUERIES, RESULT, Query
from examples.nexmark.sources import rows_of
from statebed import testing
from statebed.demo.nexmark import DEFAULT_FIRST_TIME_US, Nexmark

DISORDER_US = 3_000_000
END = "9999-01-01"


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
    with testing.run(flow, parallelism=arguments.parallelism) as run:
        start = time.perf_counter()
        for rows in epochs:
            run.feed_all(rows)
        run.watermark(END)
        seconds = time.perf_counter() - start
        results = run.table(RESULT)
    print(f"{query.name}  {query.about}")
    print(
        f"{arguments.events:,} events in {arguments.epochs} epochs: {seconds:.2f} s, "
        f"{arguments.events / seconds:,.0f} events/s, {results.num_rows:,} results"
    )
    for row in results.slice(0, arguments.rows).to_pylist():
        print("  " + ", ".join(f"{name}={_brief(value)}" for name, value in row.items()))


def _brief(value: object, longest: int = 32) -> str:
    text = str(value)
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


if __name__ == "__main__":
    main()
