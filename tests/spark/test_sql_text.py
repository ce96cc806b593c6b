"""SQL text as jobs on Spark: the Nexmark queries equal DuckDB, pipelines run, mistakes are shown in the text."""

import sqlite3
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duck
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from nexmark_answers import assert_same, expected, in_order, without_zones
from spark.sql_tables import check_mistake

import statebed as sb
from examples.nexmark import QUERIES, rows_of
from examples.nexmark.on_spark import SQL, Events, NexmarkJob
from examples.nexmark.sources import SOURCE_NAMES
from statebed.demo.nexmark import Nexmark
from statebed.errors import InputError
from statebed.format.names import stored_name
from statebed.queries.text.pipeline import PipelineSettings
from statebed.sql.source_text import SqlText
from statebed.sql.statement_parser import parse_statements
from statebed.sql.statements import SetOption

pytestmark = pytest.mark.filterwarnings("ignore::statebed.errors.UnboundedStateWarning")
MIDNIGHT_US = 1_767_225_600_000_000
GENERATOR = Nexmark(seed=5, events_per_second=10, out_of_order_us=3_000_000, first_time_us=MIDNIGHT_US - 100_000_000)
EVENTS = 2000
BATCHES = 2
CORE = ("q4", "q5", "q7", "q8", "q11", "q19")
"""Join, changelogs, sliding windows, rank of a window, window join, sessions, row numbers."""
OTHERS = tuple(name for name in QUERIES if name not in CORE)
CUMULATED = """
SELECT auction, window_start, window_end, count(*) AS bids
FROM TABLE(CUMULATE(TABLE bid, DESCRIPTOR(date_time), INTERVAL '5' SECONDS, INTERVAL '20' SECONDS))
GROUP BY auction, window_start, window_end
"""
CUMULATED_BY_DUCKDB = """
WITH panes AS (
  SELECT auction, time_bucket(INTERVAL 20 SECONDS, date_time, TIMESTAMP '1970-01-01') AS window_start, date_time
  FROM bid
), windows AS (
  SELECT auction, window_start, window_start + k * INTERVAL 5 SECONDS AS window_end, date_time
  FROM panes, range(1, 5) AS steps (k)
)
SELECT auction, window_start, window_end, count(*) AS bids FROM windows WHERE date_time < window_end GROUP BY ALL
"""
TEMPORAL = """
SELECT b.auction, b.price, b.bidder, a.category
FROM bid AS b JOIN auction FOR SYSTEM_TIME AS OF b.date_time AS a ON b.auction = a.id
"""
TEMPORAL_BY_DUCKDB = """
SELECT b.auction, b.price, b.bidder, a.category
FROM bid AS b ASOF JOIN auction AS a ON b.auction = a.id AND b.date_time >= a.date_time
"""


@pytest.fixture
def utc(spark: Any) -> Iterator[Any]:
    """Before the first operator, expressions are Spark's, and `date_format` goes by the session's time zone."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", before)


def written(folder: Path) -> tuple[Events, list[dict[str, pa.Table]]]:
    """Files of events, and their rows."""
    events, batches = Events(folder), []
    for number in range(BATCHES):
        first, end = (EVENTS * edge // BATCHES for edge in (number, number + 1))
        rows = rows_of(SOURCE_NAMES, GENERATOR, first=first, count=end - first, now_us=MIDNIGHT_US + number * 7_000_000)
        events.add(number, rows)
        batches.append(rows)
    return events, batches


def by_duckdb(query: str, batches: list[dict[str, pa.Table]]) -> pa.Table:
    with duck.cursor() as connection:
        for name in ("bid", "auction"):
            connection.register(name, without_zones(pa.concat_tables([rows[name] for rows in batches])))
        return connection.sql(query).to_arrow_table()


@pytest.mark.parametrize("names", [CORE, pytest.param(OTHERS, marks=pytest.mark.long)], ids=["core", "others"])
def test_p6_nexmark_queries_as_text_in_one_job_equal_duckdb(utc: Any, tmp_path: Path, names: tuple[str, ...]) -> None:
    events, batches = written(tmp_path / "events")
    nexmark = NexmarkJob(names, tmp_path / "state", events, parallelism=2, spark=utc, as_text=True)
    more = {"cumulated": (CUMULATED, CUMULATED_BY_DUCKDB), "temporal": (TEMPORAL, TEMPORAL_BY_DUCKDB)}
    for name, (text, _) in more.items():
        nexmark.job.sql(text, name=name).write(nexmark._keep(name), name=name)
    query = nexmark.run()
    assert not sum(one.rows_late for one in query.recent_progress)
    for name in names:
        assert_same(nexmark.results(name), expected(name, batches))
    for name, (_, reference) in more.items():
        assert_same(nexmark.results(name), by_duckdb(reference, batches))


def test_there_is_a_text_for_every_nexmark_query() -> None:
    assert {path.stem for path in SQL.glob("*.sql")} == set(QUERIES)


PIPELINE = """
CREATE TABLE bids (
  auction BIGINT, price BIGINT, ms BIGINT, ts AS timestamp_millis(ms), WATERMARK FOR ts AS ts - INTERVAL '1' SECOND
) WITH (connector = 'filesystem', format = 'parquet', path = '{folder}/bids');

CREATE TABLE per_minute (auction BIGINT, starts TIMESTAMP, n BIGINT, total DECIMAL(20, 0))
WITH (connector = 'parquet', path = '{folder}/per_minute');
CREATE TABLE totals (auction BIGINT, n BIGINT, PRIMARY KEY (auction))
WITH (connector = 'sqlite', path = '{folder}/t.db');
CREATE TABLE nowhere WITH (connector = 'blackhole');

CREATE TEMPORARY VIEW expensive AS SELECT * FROM bids WHERE price >= 100; -- a comment; with a semicolon

EXECUTE STATEMENT SET BEGIN
INSERT INTO per_minute
SELECT /*+ NAME('minutes') */ auction, window_start, count(*), sum(price)
FROM TABLE(TUMBLE(TABLE expensive, DESCRIPTOR(ts), INTERVAL '1' MINUTE)) GROUP BY auction, window_start, window_end;
INSERT INTO totals (n, auction) SELECT count(*), auction FROM bids GROUP BY auction;
INSERT INTO nowhere SELECT * FROM bids;
END;
"""


def test_a_pipeline_of_tables_views_and_inserts_is_one_job(spark: Any, tmp_path: Path) -> None:
    folder = tmp_path / "bids"
    folder.mkdir()
    rows = [{"auction": n % 7, "price": n * 13 % 400, "ms": n * 250} for n in range(2000)]
    pq.write_table(pa.Table.from_pylist(rows), folder / "1.parquet")
    mine = spark.range(3)
    mine.createOrReplaceTempView("bids")
    job = sb.Job("bids", state=tmp_path / "state", parallelism=2, spark=spark)
    job.execute(PIPELINE.format(folder=tmp_path), file="pipeline.sql")
    assert spark.table("bids").columns == ["id"], "the user's own view is back"
    spark.catalog.dropTempView("bids")
    names = list(job.graph.operators)
    assert names[:2] == ["minutes", "totals_aggregate"]
    assert list(job.graph.sources) == ["bids"], "one source for all queries"
    query = job.start(processing_time="0 seconds")
    query.spark_query.processAllAvailable()
    query.stop(drain=True)
    with duck.cursor() as connection:
        connection.register("bids", pa.Table.from_pylist(rows))
        minutes = connection.sql(
            "SELECT auction, make_timestamp(ms // 60000 * 60000000) AS starts, count(*) AS n, "
            "sum(price)::DECIMAL(20, 0) AS total FROM bids WHERE price >= 100 GROUP BY ALL"
        ).to_arrow_table()
    found = without_zones(sb.read_table(str(tmp_path / "per_minute")))
    assert in_order(found).to_pylist() == in_order(minutes).to_pylist()
    with sqlite3.connect(tmp_path / "t.db") as database:
        totals = dict(database.execute("SELECT auction, n FROM totals").fetchall())
    assert totals == {auction: len([row for row in rows if row["auction"] == auction]) for auction in range(7)}


def test_tables_and_queries_may_have_any_name(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    job = sb.Job("transfers", state=tmp_path / "state", parallelism=1, spark=spark)
    job.execute(
        f"""CREATE TABLE `Überweisungen` (`Empfänger` STRING, `Betrag in €` BIGINT)
WITH (connector = 'filesystem', path = '{tmp_path}/in', format = 'parquet');
CREATE TABLE `Summen je Empfänger` (`Empfänger` STRING, `Summe` BIGINT, PRIMARY KEY (`Empfänger`) NOT ENFORCED)
WITH (connector = 'sqlite', path = '{tmp_path}/t.db');
CREATE TEMPORARY VIEW `große` AS SELECT * FROM `Überweisungen` WHERE `Betrag in €` > 1;
INSERT INTO `Summen je Empfänger`
WITH `合計` AS (SELECT `Empfänger`, sum(`Betrag in €`) AS s FROM `große` GROUP BY `Empfänger`) SELECT * FROM `合計`;"""
    )
    assert list(job.graph.sources) == [stored_name("Überweisungen")]
    assert list(job.graph.operators) == [stored_name("合計") + "_aggregate"]
    rows = [("Jörg", 5), ("日本", 1), ("Jörg", 7), ("日本", 4)]
    pq.write_table(
        pa.table({"Empfänger": [name for name, _ in rows], "Betrag in €": [amount for _, amount in rows]}),
        tmp_path / "in" / "1.parquet",
    )
    assert job.start(available_now=True).await_termination(60)
    with sqlite3.connect(tmp_path / "t.db") as database:
        totals = dict(database.execute('SELECT * FROM "Summen je Empfänger"').fetchall())
    assert totals == {"Jörg": 12, "日本": 4}


def test_queries_that_select_rows_have_operators_that_are_named_after_them(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"auction": [1, 2, 3], "price": [5, 50, 500]}), tmp_path / "in" / "1.parquet")
    tables = "\n".join(
        f"CREATE TABLE {name} (auction BIGINT, price BIGINT) "
        f"WITH (connector = 'filesystem', path = '{tmp_path}/{name}', format = 'parquet');"
        for name in ("in", "cheap", "dear", "both")
    ).replace("CREATE TABLE in ", "CREATE TABLE bids ")
    job = sb.Job("bids", state=tmp_path / "state", parallelism=1, spark=spark)
    job.execute(
        f"""{tables}
INSERT INTO cheap (Price, AUCTION) SELECT price, auction FROM bids WHERE price < 10;
INSERT INTO dear SELECT /*+ NAME('expensive') */ auction, price FROM bids WHERE price > 10;
INSERT INTO both SELECT auction, price FROM bids UNION ALL SELECT auction, -price FROM bids;"""
    )
    assert list(job.graph.operators) == ["cheap_rows", "expensive", "both_rows"]
    assert job.start(available_now=True).await_termination(60)
    prices = {
        name: sorted(sb.read_table(str(tmp_path / name))["price"].to_pylist()) for name in ("cheap", "dear", "both")
    }
    assert prices == {"cheap": [5], "dear": [50, 500], "both": [-500, -50, -5, 5, 50, 500]}
    assert sb.read_table(str(tmp_path / "cheap")).column_names == ["auction", "price"], "as declared"


def test_seconds_since_1970_and_lists_by_event_time(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    rows = {"k": [1, 1, 2, 1], "v": [30, 10, 7, 20], "us": [3_500_000, 1_000_001, 2, 2_000_000]}
    pq.write_table(pa.table(rows), tmp_path / "in" / "1.parquet")
    job = sb.Job("epochs", state=tmp_path / "state", parallelism=1, spark=spark)
    job.execute(
        f"""CREATE TABLE rows (k BIGINT, v BIGINT, us BIGINT, ts AS timestamp_micros(us), WATERMARK FOR ts AS ts)
WITH (connector = 'filesystem', path = '{tmp_path}/in', format = 'parquet');
CREATE TABLE plain WITH (connector = 'filesystem', path = '{tmp_path}/plain', format = 'parquet');
CREATE TABLE lists (k BIGINT, v STRING, e DECIMAL(20, 6), PRIMARY KEY (k) NOT ENFORCED)
WITH (connector = 'sqlite', path = '{tmp_path}/t.db');
INSERT INTO plain SELECT extract(EPOCH FROM ts) AS e, date_part('epoch', ts) AS d FROM rows;
INSERT INTO lists SELECT k, to_json(concat(l, array(f, z))), extract(epoch FROM t) FROM
(SELECT k, collect_list(v) AS l, max(ts) AS t, first_value(nullif(v, 10)) IGNORE NULLS AS f,
 last(nullif(v, 30), true) AS z FROM rows GROUP BY k);"""
    )
    assert job.start(available_now=True).await_termination(60)
    plain = sb.read_table(str(tmp_path / "plain")).to_pydict()
    seconds = [Decimal(us).scaleb(-6) for us in sorted(rows["us"])]
    assert sorted(plain["e"]) == sorted(plain["d"]) == seconds
    with sqlite3.connect(tmp_path / "t.db") as database:
        lists = {k: (v, Decimal(str(e))) for k, v, e in database.execute("SELECT k, v, e FROM lists")}
    assert lists == {1: ("[10,20,30,20,20]", Decimal("3.5")), 2: ("[7,7,7]", Decimal("0.000002"))}


def test_two_functions_of_one_name_over_one_source_can_be_written(spark: Any, tmp_path: Path) -> None:
    job = sb.Job("bids", state=tmp_path / "state", spark=spark)
    rows = job.source(spark.readStream.format("rate").load(), name="rate")
    for number in range(2):
        rows.transform(lambda df, kept=number: df.where(f"value % 2 = {kept}")).write(print, name=f"half_{number}")
    assert len(job.graph.operators) == len(set(job.graph.operators)) == 2


def test_a_definition_with_if_not_exists_keeps_the_first_one(spark: Any, tmp_path: Path) -> None:
    job = sb.Job("bids", state=tmp_path / "state", spark=spark)
    job.execute(
        """SET 'spark.sql.session.timeZone' = 'America/New_York';
CREATE TABLE IF NOT EXISTS bids (auction BIGINT) WITH (connector = 'datagen');
CREATE TABLE IF NOT EXISTS BIDS (other STRING) WITH (connector = 'datagen');
CREATE TEMPORARY VIEW IF NOT EXISTS v AS SELECT auction AS a FROM bids;
CREATE TEMPORARY VIEW IF NOT EXISTS v AS SELECT auction AS b FROM bids;
CREATE FUNCTION IF NOT EXISTS twice RETURNS BIGINT AS 'operator:neg';
CREATE FUNCTION IF NOT EXISTS twice RETURNS BIGINT AS 'operator:abs';"""
    )
    assert job.sql("SELECT * FROM v").columns == ["a"]


def test_a_setting_with_two_values_is_refused() -> None:
    text = SqlText("SET parallelism = 3;\nSELECT 1;\nSET parallelism = 4;", "pipeline.sql")
    options = [entry for entry in parse_statements(text) if isinstance(entry, SetOption)]
    with pytest.raises(InputError, match="'parallelism' is set to '3' already") as caught:
        PipelineSettings(text, options)
    assert "line 3, column 1" in caught.value.where


MISTAKES = {
    "SELECT price,\n  rand() AS r FROM bids": (
        "SELECT cannot run on statebed: it returns different rows when computed again",
        "SELECT price",
        "xxhash64",
    ),
    "SELECT note, count(*) FROM bids\nWHERE uuid() > 'a' GROUP BY note": (
        "a condition cannot run on statebed: it returns different rows when computed again",
        "uuid()",
        "xxhash64",
    ),
    "SELECT kurtosis(price) FROM bids GROUP BY auction": (
        "GROUP BY cannot run on statebed: statebed has no aggregate kurtosis()",
        "GROUP BY auction",
        "aggregates.md",
    ),
    "SELECT *,\n\tlag(price) OVER (PARTITION BY auction ORDER BY ts) AS p /* ü */\nFROM bids": (
        "lag() is not computed over a partition",
        "lag(price) OVER",
        "aggregate by a window",
    ),
    "SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price) AS rn FROM bids": (
        "SELECT cannot run on statebed: row numbers have no upper bound",
        "SELECT *",
        "WHERE rn <= 3",
    ),
    "SELECT auction FROM bids EXCEPT SELECT price FROM bids": ("EXCEPT cannot run", "SELECT", "LEFT ANTI JOIN b ON"),
    "SELECT auction FROM bids INTERSECT SELECT price FROM bids": ("INTERSECT cannot run", "", "LEFT SEMI JOIN b ON"),
    "SELECT * FROM bids LIMIT 3": ("LIMIT cannot run", "LIMIT 3", "WHERE rn <= 5"),
    "SELECT * FROM bids a JOIN bids b ON a.price > b.price": ("JOIN cannot run", "JOIN bids b", "add an equality"),
    "SELECT max(struct(price, note)) FROM bids GROUP BY auction": ("GROUP BY cannot run", "GROUP BY", "max_by"),
    "SELECT auction, count(*) FROM bids": ("does not include a GROUP BY", "SELECT", "add GROUP BY"),
    "SELECT note, count(*) FROM bids GROUP BY auction": ('"note" is based on columns', "SELECT", "add it to GROUP BY"),
    "SELECT a.price FROM bids a JOIN bids b ON a.auction = b.auction WHERE ts > '2024'": (
        "`ts` is ambiguous",
        "ts >",
        "the name of the table before it",
    ),
    "SELECT price\nFROM bids -- all\nWHERE price > 3\n\tAND ts > 5": ("data type mismatch", "ts > 5", "CAST("),
    "SELECT count(*) FROM bids GROUP BY session_window(ts, INTERVAL '5' MINUTES)": (
        "Gap duration",
        "SELECT",
        "SESSION(ts",
    ),
    "CREATE TABLE t (ts TIMESTAMP, WATERMARK FOR ts AS ts + INTERVAL '5' SECONDS) WITH (connector = 'datagen')": (
        "expected a comma or ) after the watermark, but there is '+'",
        "+",
        "WATERMARK FOR ts AS ts - INTERVAL",
    ),
    "SELECT json_value(note, '$.a') FROM bids": ("there is no function", "json_value", "get_json_object"),
    "SELECT n FROM bids CROSS JOIN UNNEST(split(note, ',')) WITH ORDINALITY AS t(x, n)": (
        "WITH ORDINALITY is not supported",
        "WITH ORDINALITY",
        "posexplode",
    ),
    "SELECT auction FROM bids WHERE auction IN (SELECT price FROM bids)": (
        "a subquery in a condition reads a stream",
        "SELECT auction",
        "LEFT SEMI JOIN",
    ),
    "SELECT x FROM bids": ("there is no column `x`", "x", "did you mean one of"),
    "SELECT *\nFROM bidz": ("there is no table `bidz`", "bidz", "did you mean `bids`? the tables are"),
    "SELECT shout(note) FROM bids": ("there is no function `shout`", "shout(note)", "CREATE FUNCTION"),
    "SELECT a b c FROM bids": ("syntax error at or near 'c'", "c", "correct the SQL"),
    "SELECT price FROM TABLE(TUMBLE(TABLE bids, DESCRIPTOR(tz), INTERVAL '1' MINUTE))": (
        "there is no column `tz`",
        "tz",
        "did you mean",
    ),
    "SELECT price FROM bids\nORDER BY price": ("a stream has no end", "ORDER BY price", "sort where"),
    "SELECT auction, avg(n) FROM (SELECT auction, count(*) n FROM bids GROUP BY auction LIMIT 3) GROUP BY auction": (
        "a stream has no first rows",
        "LIMIT 3",
        "ROW_NUMBER()",
    ),
    "SELECT 1": ("the query reads no stream", "SELECT 1", "read one of the tables"),
    "SELECT price, cast('x' AS int) AS n FROM bids": ("cannot be cast to", "cast('x' AS int)", ""),
    "SELECT b.price FROM bids b JOIN bids FOR SYSTEM_TIME AS OF b.price AS r ON b.auction = r.auction": (
        "takes the event time of the left side",
        "",
        "WATERMARK FOR",
    ),
    "INSERT INTO outt SELECT 1": ("there is no table 'outt'", "outt", "did you mean `out`?"),
    "INSERT INTO bids SELECT * FROM bids": ("cannot be written", "bids", "another table"),
    "INSERT INTO out SELECT auction FROM bids": (
        "has 1 columns (auction), but out takes 2",
        "SELECT auction",
        "select 2",
    ),
    "INSERT INTO out SELECT note, price FROM bids": ("out is bigint, but the query gives string", "SELECT", "CAST"),
    "INSERT INTO out (auction, m) SELECT auction, 1 FROM bids": ("no column 'm'", "m", "its columns are auction, n"),
    "INSERT INTO out SELECT auction, count(*) FROM bids GROUP BY auction": (
        "has no primary key",
        "out",
        "PRIMARY KEY (auction)",
    ),
    "INSERT INTO black SELECT * FROM bids; INSERT INTO black SELECT * FROM bids": (
        "another INSERT writes to 'black' already",
        "black SELECT * FROM bids",
        "UNION ALL",
    ),
    "CREATE TABLE bids WITH (connector = 'print')": ("'bids' already", "bids", "another name"),
    "CREATE VIEW v AS SELECT nope FROM bids": ("there is no column `nope`", "nope", "did you mean"),
    "CREATE VIEW v (a, b) AS SELECT price FROM bids": ("names 2 columns, but its query has 1", "a, b", "name all of"),
    "SET parallelism = 3": ("the job exists already", "SET parallelism", "settings={'parallelism': '3'}"),
    "CREATE TABLE t (a BIGINT) WITH (path = 'x')": ("has no connector", "t (a", "filesystem"),
    "CREATE TABLE t (a BIGINT) WITH (connector = 'kafkaa')": (
        "no connector 'kafkaa'",
        "'kafkaa'",
        "the connectors are",
    ),
    "CREATE TABLE t (a BIGINT) WITH (connector = 'stdout', format = 'json')": (
        "no connector 'stdout'",
        "'stdout'",
        "connector = 'print'",
    ),
    "CREATE TABLE t (a BIGINT) WITH (connector = 'datagen', fields.a.end = 3); SELECT * FROM t": (
        "ends a sequence, but the column is random",
        "3)",
        "kind = 'sequence'",
    ),
    "CREATE TABLE t (a BIGINT, b ARRAY<INT>) WITH (connector = 'datagen'); SELECT * FROM t": (
        "cannot fill the column 'b' of type array<int>",
        "ARRAY<INT>",
        "in a view",
    ),
    "CREATE TABLE t (a BIGINT) WITH (connector = 'datagen', fields.a.kind = 'seq'); SELECT * FROM t": (
        "fields.a.kind must be 'random' or 'sequence', got 'seq'",
        "'seq'",
        "one of them",
    ),
    "CREATE TABLE t (a DOUBLE) WITH (connector = 'datagen', fields.a.kind = 'sequence'); SELECT * FROM t": (
        "fields.a.kind is 'sequence', but the column has the type double",
        "'sequence'",
        "BIGINT",
    ),
    "CREATE TABLE t (a INT) WITH (connector = 'datagen', fields.a.min = 5, fields.a.max = 3); SELECT * FROM t": (
        "fields.a.max leaves no values: the least is 5, the greatest 3",
        "3)",
        "exchange",
    ),
    "CREATE TABLE t (a INT) WITH (connector = 'datagen', fields.a.null-rate = 20); SELECT * FROM t": (
        "must be between 0 and 1, got 20",
        "20)",
        "0.1",
    ),
    "CREATE TABLE t (a BIGINT) WITH (connector = 'parquet', pth = 'x')": (
        "has no option 'pth'",
        "pth",
        "did you mean `path`?",
    ),
    "CREATE TABLE t (a BIGINT) WITH (connector = 'parquet')": ("needs the option 'path'", "'parquet'", "add path"),
    "CREATE TABLE t (a BIGINT) WITH (connector = 'filesystem', path = 'x', format = 'xml')": (
        "format must be one of parquet",
        "'xml'",
        "choices",
    ),
    "CREATE TABLE t (a BIGINT) WITH (connector = 'datagen', rows-per-second = 'many')": (
        "must be a whole number, got 'many'",
        "'many'",
        "1000",
    ),
    "CREATE TABLE t (a BIGINT) WITH (connector = 'datagen', fields.b.max = 3); SELECT * FROM t": (
        "there is no column 'b'",
        "fields.b.max",
        "the columns are a",
    ),
    "CREATE TABLE t (a WRONG) WITH (connector = 'datagen')": (
        "WRONG is not a type",
        "WRONG",
        "BIGINT",
    ),
    "CREATE TABLE t (a BIGINT, WATERMARK FOR a AS a) WITH (connector = 'datagen')": (
        "must be a column of type TIMESTAMP, but it is bigint",
        "a AS a",
        "timestamp_millis",
    ),
    "CREATE TABLE t (a BIGINT, b AS nope + 1) WITH (connector = 'datagen'); SELECT * FROM t": (
        "there is no column `nope`",
        "nope",
        "did you mean",
    ),
    "SELECT auction, count(*) AS n FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price) AS rn\n"
    "FROM bids) AS ranked GROUP BY auction, rn": (
        "SELECT cannot run on statebed: row numbers have no upper bound",
        "GROUP BY auction, rn",
        "WHERE rn <= 3",
    ),
    "SELECT auction, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price) AS rn FROM bids UNION ALL SELECT 1, 1 "
    "FROM bids": ("row numbers without an upper bound are used in a union", "SELECT auction", "WHERE rn <= 3"),
    "SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price) AS rn FROM bids)\nWHERE rn > 3": (
        "row numbers have no upper bound",
        "rn > 3",
        "rn <= 3",
    ),
    "SELECT b.price FROM bids b\nJOIN bids FOR SYSTEM_TIME AS OF b.ts AS r ON b.auction = r.auction AND r.price > 3": (
        "a temporal join is on equal columns alone",
        "JOIN bids",
        "move other conditions to WHERE",
    ),
    "SELECT b.price FROM bids b\nFULL JOIN bids FOR SYSTEM_TIME AS OF b.ts AS r ON b.auction = r.auction": (
        "a temporal join is an inner or left join, not full",
        "FULL JOIN",
        "write JOIN or LEFT JOIN",
    ),
    "SELECT b.price FROM bids b\nJOIN bids FOR SYSTEM_TIME AS OF b.ts AS r ON b.price > r.price": (
        "a temporal join needs the key of the versions",
        "JOIN bids",
        "write ON a.key = b.key",
    ),
    "SELECT percentile(price, auction / 10) FROM bids GROUP BY note": (
        "should be a foldable",
        "percentile",
        "write a constant there",
    ),
    "CREATE FUNCTION f RETURNS BIGINT AS 'operator:neg'; CREATE FUNCTION f RETURNS BIGINT AS 'operator:abs'": (
        "there is a function 'f' already",
        "f RETURNS",
        "choose another name",
    ),
    "SELECT /*+ NAME('a') */ /*+ NAME('b') */ note FROM bids": (
        "this block has a NAME hint already",
        "/*+ NAME('b')",
        "remove one",
    ),
    "-- name: a\n-- name: b\nSELECT note FROM bids": ("this block has a name already", "-- name: b", "remove one"),
    "CREATE TABLE t (a INT UNSIGNED) WITH (connector = 'datagen')": (
        "unsigned types are not supported",
        "UNSIGNED",
        "next larger type",
    ),
    "CREATE TABLE t (a INT METADATA FROM 'offset') WITH (connector = 'datagen')": (
        "METADATA columns are not supported",
        "METADATA",
        "without METADATA",
    ),
    "CREATE TABLE db.t (a INT) WITH (connector = 'datagen')": (
        "names have one part",
        ".t",
        "leave the database out",
    ),
    "CREATE TABLE t (ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '1:30' MINUTE TO SECOND) "
    "WITH (connector = 'print')": (
        "intervals of two units are not supported",
        "INTERVAL",
        "INTERVAL '5 seconds'",
    ),
    "CREATE TABLE t (a INT) WITH (connector = 'datagen', fields.a.mox = 3); SELECT * FROM t": (
        "a column of 'datagen' has no option 'mox'",
        "fields.a.mox",
        "did you mean `max`?",
    ),
    "CREATE TABLE t (a INT) WITH ('connector' = 'kafka', 'properties.bootstrap.servers' = 'h:1')": (
        "the connector 'kafka' has no option 'properties.bootstrap.servers'",
        "'properties.bootstrap.servers'",
        "write servers = 'host:9092'",
    ),
    "CREATE TABLE t (a INT) WITH (connector = 'kafka', topic = 't', servers = 'h:1', 'format' = 'json')": (
        "the connector 'kafka' has no option 'format'",
        "'format'",
        "leave it out for messages of JSON",
    ),
    "CREATE TABLE t (a INT) WITH (connector = 'parquet', path = 'x', type = 'sink')": (
        "has no option 'type'",
        "type",
        "a table that INSERT INTO names is written",
    ),
    "CREATE TABLE t (a INT) WITH (connector = 'parquet', path = 'x', format = 'json')": (
        "has no option 'format'",
        "format",
        "the options are",
    ),
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_is_shown_in_the_text(spark: Any, tmp_path: Path, text: str) -> None:
    what, place, fix = MISTAKES[text]
    check_mistake(spark, tmp_path, text, what=what, place=place, fix=fix)


def test_sql_over_registered_sources_is_a_stream(spark: Any, tmp_path: Path) -> None:
    job = sb.Job("streams", state=tmp_path, spark=spark)
    rate = spark.readStream.format("rate").load()
    job.source(rate, name="ticks", watermark=("timestamp", "1 second"))
    stream = job.sql("SELECT value % 2 AS odd, count(*) AS n FROM ticks GROUP BY 1, window(timestamp, '1 minute')")
    assert stream.columns == ["odd", "n"]
    assert list(job.graph.operators) == ["sql_window"]
    named = job.sql("WITH odds AS (SELECT value FROM ticks GROUP BY value) SELECT * FROM odds", name="other")
    assert named.columns == ["value"]
    assert list(job.graph.operators) == ["sql_window", "odds_aggregate"]
    assert list(job.graph.sources) == ["ticks"]
    with pytest.raises(InputError, match="`mode` must be one of"):
        job.sql("SELECT * FROM ticks", mode="late")


def test_settings_of_flink_are_ours_or_refused_with_what_to_do() -> None:
    source = SqlText("SET 'execution.checkpointing.interval' = '10s'; SET 'parallelism.default' = '3'")
    settings = PipelineSettings(source, [entry for entry in parse_statements(source) if isinstance(entry, SetOption)])
    assert (settings.value("processing_time"), settings.value("parallelism")) == ("10s", "3")
    source = SqlText("SET 'table.exec.state.ttl' = '1 d'")
    with pytest.raises(sb.InputError, match=r"no setting(.|\n)*remove it") as refused:
        PipelineSettings(source, [entry for entry in parse_statements(source) if isinstance(entry, SetOption)])
    assert "^" in refused.value.where
