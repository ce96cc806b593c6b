"""Flink's window joins and its column window_time in SQL text: rows equal DuckDB's, late ones are left out, and nothing
is kept after a window.
"""

import datetime as dt
import itertools
import os
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import duck
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import statebed as sb
from statebed.flow.graph import OperatorNode
from statebed.format.stream_schema import Changes
from statebed.operators.joins import WindowJoin

START = dt.datetime(2024, 1, 1)  # noqa: DTZ001 - as DuckDB gives it
FILES = 4
DELAY = 30
LATE = 3
"""Seconds after the start of a row that the last file has; windows until 00:02:29 have closed by then."""
TABLES = """
CREATE TABLE bids (auction BIGINT, price BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '30' SECOND)
WITH (connector = 'parquet', path = '{folder}/bids', max-files-per-trigger = 1);
CREATE TABLE rates (auction BIGINT, rate BIGINT, rts TIMESTAMP, WATERMARK FOR rts AS rts - INTERVAL '30' SECOND)
WITH (connector = 'parquet', path = '{folder}/rates', max-files-per-trigger = 1);
"""
TUMBLE = "TABLE(TUMBLE(TABLE {}, DESCRIPTOR({}), INTERVAL '1' MINUTE))"
HOP = "TABLE(HOP(TABLE {}, DESCRIPTOR({}), INTERVAL '20' SECOND, INTERVAL '1' MINUTE))"
CUMULATE = HOP.replace("HOP", "CUMULATE")
WINDOWS = {"tumble": TUMBLE, "hop": HOP, "cumulate": CUMULATE}
BIDS, RATES = TUMBLE.format("bids", "ts"), TUMBLE.format("rates", "rts")
SAME = "L.auction = R.auction AND L.window_start = R.window_start AND L.window_end = R.window_end"
KINDS = ("INNER", "LEFT", "RIGHT", "FULL", "LEFT SEMI", "LEFT ANTI")
BY_DUCKDB = {
    "tumble": "SELECT *, b AS window_start, b + INTERVAL 1 MINUTE AS window_end FROM "
    "(SELECT *, time_bucket(INTERVAL 1 MINUTE, {time}) AS b FROM {table})",
    "hop": "SELECT *, b - i * INTERVAL 20 SECOND AS window_start, b + (3 - i) * INTERVAL 20 SECOND AS window_end FROM "
    "(SELECT *, time_bucket(INTERVAL 20 SECOND, {time}) AS b FROM {table}), range(3) AS s(i)",
    "cumulate": "SELECT *, b AS window_start, b + i * INTERVAL 20 SECOND AS window_end FROM "
    "(SELECT *, time_bucket(INTERVAL 1 MINUTE, {time}) AS b FROM {table}), range(1, 4) AS s(i) "
    "WHERE {time} < b + i * INTERVAL 20 SECOND",
}
"""Rows of each table once for each of their windows."""
Queries = Mapping[str, tuple[str, str]]
PAIRS = list(zip(itertools.cycle(WINDOWS), KINDS, strict=False))
"""Each kind of join in windows of one kind."""
OTHER_PAIRS = [pair for pair in itertools.product(WINDOWS, KINDS) if pair not in PAIRS]


def window_joins(pairs: Iterable[tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """Joins of a kind in windows of a kind, as text and for DuckDB, whose windows are views."""
    queries = {}
    for window, kind in pairs:
        function = WINDOWS[window]
        columns = "L.auction, L.price, L.window_start, L.window_end"
        if kind not in {"LEFT SEMI", "LEFT ANTI"}:
            columns += ", R.auction AS other, R.rate, R.window_start AS s, R.window_end AS e"
        bids, rates = function.format("bids", "ts"), function.format("rates", "rts")
        condition = SAME if window == "tumble" else f"{SAME} AND L.price < R.rate"
        queries[f"{window}_{kind.lower().replace(' ', '_')}"] = (
            f"SELECT {columns} FROM {bids} L {kind} JOIN {rates} R ON {condition}",
            (
                f"SELECT {columns} FROM bids_{window} L {kind.replace('LEFT S', 'S').replace('LEFT A', 'A')} "
                f"JOIN rates_{window} R ON {condition}"
            ),
        )
    return queries


def more_joins() -> dict[str, tuple[str, str]]:
    starts = "L.auction = R.auction AND L.window_start = R.window_start"
    counts = (
        "SELECT auction, window_start, window_end, count(*) AS n FROM {} GROUP BY auction, window_start, window_end"
    )
    untimed = "SELECT auction, {}, window_start AS s, window_end AS e FROM {}"
    third = "LEFT JOIN {} T ON L.auction = T.auction AND T.window_start = L.window_start AND T.rate > 800"
    top = (
        "SELECT price, rate FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end "
        "ORDER BY price DESC, rate, auction) AS rn FROM (SELECT L.*, R.rate FROM {} L JOIN {} R ON "
        f"{SAME})) WHERE rn <= 2"
    )
    texts = {
        "start_alone": f"SELECT L.price, R.rate FROM {{}} L FULL JOIN {{}} R ON {starts}",
        "no_key": "SELECT L.price, R.rate FROM {} L JOIN {} R ON L.window_end = R.window_end AND L.price < R.rate",
        "time_alone": f"SELECT L.price, R.rate, L.window_time FROM {{}} L LEFT JOIN {{}} R ON {starts} AND "
        "R.window_time = L.window_time",
        "window_in_condition": f"SELECT L.price, R.rate FROM {{}} L LEFT JOIN {{}} R ON {SAME} AND "
        "R.rts < L.window_start + INTERVAL 20 SECOND",
        "times_that_are_not_selected": f"SELECT L.price, R.rate FROM ({untimed.format('price', '{}')}) L "
        f"LEFT JOIN ({untimed.format('rate', '{}')}) R ON L.auction = R.auction AND L.s = R.s AND L.e = R.e",
        "distinct_pairs": f"SELECT DISTINCT L.auction, L.window_start FROM {{}} L JOIN {{}} R ON {SAME}",
        "pairs_of_a_window": f"SELECT L.window_end, COUNT(*) AS n FROM {{}} L JOIN {{}} R ON {SAME} "
        "GROUP BY L.window_end",
        "in_a_with_clause": f"WITH l AS (SELECT * FROM {{}}), r AS (SELECT * FROM {{}}) "
        f"SELECT L.price, R.rate FROM l AS L LEFT JOIN r AS R ON {SAME}",
        "rows_with_results": f"SELECT L.price, R.n FROM {{}} L LEFT JOIN ({counts.format('{}')}) R ON {SAME}",
        "top_of_pairs": top,
    }
    queries = {
        name: (text.format(BIDS, RATES), text.format("bids_tumble", "rates_tumble")) for name, text in texts.items()
    }
    three = f"SELECT L.price, R.rate, T.rate AS more FROM {{}} L JOIN {{}} R ON {SAME} {third}"
    queries["three_streams"] = (
        three.format(BIDS, RATES, RATES),
        three.format("bids_tumble", "rates_tumble", "rates_tumble"),
    )
    return queries


def times_of_windows() -> dict[str, tuple[str, str]]:
    """Queries that read window_time, and windows over it."""
    small = "TABLE(TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '20' SECOND))"
    keys = "window_start, window_end, window_time"
    sums = f"SELECT auction, window_time AS rowtime, SUM(price) AS p FROM {small} GROUP BY auction, {keys}"
    large = "TABLE(TUMBLE(TABLE {}, DESCRIPTOR(rowtime), INTERVAL '1' MINUTE))"
    end = "window_end - INTERVAL 1 MICROSECOND"
    totals = "SELECT window_start, {}SUM(price) AS p FROM bids_tumble GROUP BY ALL"
    sessions = (
        "SELECT auction, max(ts) + INTERVAL 4 SECOND - INTERVAL 1 MICROSECOND, count(*) FROM (SELECT *, sum(first) "
        "OVER (PARTITION BY auction ORDER BY ts, price) AS g FROM (SELECT *, coalesce(ts > lag(ts) OVER (PARTITION BY "
        "auction ORDER BY ts, price) + INTERVAL 4 SECOND, true)::INT AS first FROM bids)) GROUP BY auction, g"
    )
    old = "TUMBLE{}(ts, INTERVAL '1' MINUTE)"
    return {
        "cascade_in_a_with_clause": (
            f"WITH w AS ({sums}) SELECT window_start, SUM(p) FROM {large.format('w')} GROUP BY 1, window_end",
            totals.format(""),
        ),
        "cascade_in_a_subquery_with_its_own_time": (
            f"SELECT window_start, window_time, SUM(p) FROM {large.format(f'({sums})')} GROUP BY {keys}",
            totals.format(f"{end}, "),
        ),
        "cascade_of_older_functions": (
            (
                "WITH w AS (SELECT TUMBLE_ROWTIME(ts, INTERVAL '20' SECOND) AS rowtime, SUM(price) AS p FROM bids "
                "GROUP BY TUMBLE(ts, INTERVAL '20' SECOND)) SELECT TUMBLE_START(rowtime, INTERVAL '1' MINUTE), SUM(p) "
                "FROM w GROUP BY TUMBLE(rowtime, INTERVAL '1' MINUTE)"
            ),
            totals.format(""),
        ),
        "older_functions": (
            f"SELECT {old.format('_ROWTIME')}, count(*) FROM bids GROUP BY {old.format('')}",
            f"SELECT {end}, count(*) FROM bids_tumble GROUP BY ALL",
        ),
        **{
            f"times_of_{window}": (
                (
                    f"SELECT window_time, auction, count(*) FROM {WINDOWS[window].format('bids', 'ts')} "
                    f"GROUP BY auction, {keys}"
                ),
                f"SELECT {end}, auction, count(*) FROM bids_{window} GROUP BY ALL",
            )
            for window in WINDOWS
        },
        "times_of_sessions": (
            (
                "SELECT auction, window_time, count(*) FROM TABLE(SESSION(TABLE bids PARTITION BY auction, DESCRIPTOR("
                f"ts), INTERVAL '4' SECOND)) GROUP BY auction, {keys}"
            ),
            sessions,
        ),
        "first_rows_of_a_window": (
            (
                "SELECT window_time, price FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end "
                f"ORDER BY price DESC) AS rn FROM {HOP.format('bids', 'ts')}) WHERE rn <= 2"
            ),
            (
                f"SELECT {end}, price FROM (SELECT *, row_number() OVER (PARTITION BY window_end ORDER BY price DESC) "
                "AS rn FROM bids_hop) WHERE rn <= 2"
            ),
        ),
    }


def rows_of(folder: Path, name: str, value: str, time: str) -> pa.Table:
    """Write files of rows, the last of which has a late one; return the rows that are not late."""
    chance = random.Random(name)
    (folder / name).mkdir(parents=True)
    schema = pa.schema([("auction", pa.int64()), (value, pa.int64()), (time, pa.timestamp("us"))])
    on_time = []
    for file in range(FILES):
        rows = [
            {
                "auction": chance.choice([1, 2, 3, None]),
                value: chance.randrange(1000),
                time: START + dt.timedelta(seconds=file * 60 + chance.randrange(60 + DELAY - 1)),
            }
            for _ in range(25)
        ]
        rows.append({"auction": 1, value: 1, time: START + dt.timedelta(seconds=file * 60 + 60 + DELAY - 1)})
        on_time += rows
        late = [{"auction": 1, value: 999, time: START + dt.timedelta(seconds=LATE)}] if file == FILES - 1 else []
        path = folder / name / f"{file}.parquet"
        table = pa.Table.from_pylist([*rows, *late], schema=schema)
        pq.write_table(table.set_column(2, time, table[time].cast(pa.timestamp("us", "UTC"))), path)
        os.utime(path, (1_700_000_000 + file, 1_700_000_000 + file))  # read in this order
    return pa.Table.from_pylist(on_time, schema=schema)


def expected(query: str, tables: Mapping[str, pa.Table]) -> Counter[tuple[Any, ...]]:
    with duck.cursor() as connection:
        for (name, rows), time in zip(tables.items(), ("ts", "rts"), strict=True):
            connection.register(name, rows)
            for window, text in BY_DUCKDB.items():
                shown = f"SELECT *, window_end - INTERVAL 1 MICROSECOND AS window_time FROM ({text})"
                connection.execute(f"CREATE TEMP VIEW {name}_{window} AS {shown.format(time=time, table=name)}")
        return Counter(connection.sql(query).fetchall())


@pytest.mark.parametrize(
    ("name", "queries"),
    [
        pytest.param("joins", window_joins(PAIRS), id="joins"),
        pytest.param("joins", window_joins(OTHER_PAIRS), id="other joins", marks=pytest.mark.long),
        pytest.param("more", more_joins(), id="more"),
        pytest.param("times", times_of_windows(), id="times"),
    ],
)
def test_p6_windows_of_flink_give_the_rows_of_duckdb_and_keep_none(
    spark: Any, tmp_path: Path, name: str, queries: Queries
) -> None:
    tables = {
        "bids": rows_of(tmp_path, "bids", "price", "ts"),
        "rates": rows_of(tmp_path, "rates", "rate", "rts"),
    }
    job = sb.Job(name, state=tmp_path / "state", spark=spark, parallelism=1)
    job.execute(TABLES.format(folder=tmp_path))
    results: dict[str, Counter[tuple[Any, ...]]] = {query: Counter() for query in queries}
    for query, (text, _) in queries.items():
        stream = job.sql(text, name=query, mode=None if query == "first_rows_of_a_window" else "append")
        assert stream.output.changes is Changes.APPEND

        def keep(rows: Any, _: int, query: str = query) -> None:
            results[query].update(
                tuple(value.replace(tzinfo=None) if isinstance(value, dt.datetime) else value for value in row)
                for row in rows.collect()
            )

        stream.write(keep, name=query)
    operators = [node.operator for node in job.graph.nodes if isinstance(node, OperatorNode)]
    if name == "joins":
        assert {type(operator) for operator in operators} == {WindowJoin}
    assert "kept for ever" not in str(job.explain())
    running = job.start(processing_time="0 seconds")  # warnings are errors: no state is unbounded
    running.spark_query.processAllAvailable()
    running.stop(drain=True)
    for query, (_, reference) in queries.items():
        assert results[query] == expected(reference, tables), query
    for operator in operators:
        for table, config in operator.tables.items():
            if config.keyed.HasField("time_to_live_us"):
                continue  # rows that have expired leave with the next write
            kept = sb.read_state(str(tmp_path / "state"), job=name, operator=operator.operator_id, table=table)
            assert kept.count() == 0, f"{operator.operator_id} keeps rows of closed windows in {table}"
