"""Keep a table of what each order still owes, from the change events of two tables. Run it again: it continues."""

import argparse
import contextlib
import sqlite3
import warnings
from pathlib import Path

from examples.orders.events import add_events
from examples.orders.job import TABLE, balance_job
from statebed import UnboundedStateWarning


def main() -> None:
    """Add sample events, run the job until it has read them, and count orders by status."""
    parser = argparse.ArgumentParser(prog="python -m examples.orders", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("orders-demo"), help="events and state")
    parser.add_argument("--files", type=int, default=4, help="new files of events for each table; 0 for none")
    parser.add_argument("--dsn", help="PostgreSQL, for example 'host=localhost dbname=shop'; default: a SQLite file")
    arguments = parser.parse_args()

    added = add_events(arguments.folder / "events", files=arguments.files)
    database = arguments.folder / "balance.db"
    postgres = {"sink": "postgres", "dsn": arguments.dsn}
    target = postgres if arguments.dsn else {"sink": "sqlite", "path": str(database)}
    # Orders are kept for ever, on purpose: any of them may still be paid.
    warnings.simplefilter("ignore", UnboundedStateWarning)
    job = balance_job(arguments.folder / "events", arguments.folder / "state", target)
    job.start(available_now=True).await_termination()

    query = f"select status, count(*), sum(open_cents) from {TABLE} group by status order by status"  # noqa: S608 - our own text
    for status, orders, cents in _rows(query, arguments.dsn, database):
        print(f"{status}: {orders} orders, {cents / 100:,.2f} open")
    print(f"{added} new events; the table is {TABLE} in {arguments.dsn or database}")


def _rows(query: str, dsn: str | None, database: Path) -> list[tuple[str, int, int]]:
    if dsn is None:
        with contextlib.closing(sqlite3.connect(database)) as connection:
            return connection.execute(query).fetchall()
    import psycopg  # noqa: PLC0415 - not needed for SQLite

    with psycopg.connect(dsn) as server:
        return [(row[0], row[1], int(row[2])) for row in server.execute(query.encode())]


if __name__ == "__main__":
    main()
