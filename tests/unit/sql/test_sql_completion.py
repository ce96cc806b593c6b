"""Completion knows what may stand at the cursor."""

import pytest

from statebed.sql.completion import CompletionNames, completed_word, completions

COLUMNS = {"bids": ["auction", "price", "ts"], "per_minute": ["auction", "n"], "job.totals.groups": ["auction", "sum"]}
NAMES = CompletionNames(
    tables=list(COLUMNS),
    columns=lambda table: COLUMNS[table],
    functions=["count", "coalesce", "my_function"],
    jobs=["totals", "minutes"],
    settings=["parallelism", "memory"],
    connectors=lambda: {
        "kafka": {"topic": (), "format": ("json", "avro")},
        "datagen": {"rows-per-second": (), "fields.*.kind": ()},
    },
    by_word={".mode": ("table", "csv", "json")},
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {"SELECT", "CREATE TABLE", "SHOW"}),
        ("sel", {"select"}),
        ("CREATE T", {"TABLE", "TEMPORARY VIEW"}),
        ("SHOW ", {"TABLES", "FUNCTIONS", "JOBS"}),
        ("show t", {"tables"}),
        ("SELECT * FROM b", {"bids"}),
        ("SELECT * FROM bids JOIN per", {"per_minute"}),
        ("SELECT * FROM job.", {"job.totals.groups"}),
        ("SELECT job.totals.groups.s FROM x", set()),
        ("INSERT INTO p", {"per_minute"}),
        ("DESCRIBE b", {"bids"}),
        ("DROP TABLE b", {"bids"}),
        ("SELECT pri", {"price", "primary"}),
        ("SELECT su", set()),  # a column of a state table, which would have to be read
        ("CREATE TABLE t (k INT) WITH (conn", {"connector"}),
        ("CREATE TABLE t (k INT) WITH ('conn", {"connector"}),
        ("CREATE TABLE t (k INT) WITH (connector = ", {"'kafka'", "'datagen'"}),
        ("CREATE TABLE t (k INT) WITH (connector = 'k", {"kafka"}),
        ("CREATE TEMPORARY TABLE t\nWITH ('connector' = 'kafka',\n  'to", {"topic"}),
        ("CREATE TABLE t WITH (connector = 'kafka', format = 'a", {"avro"}),
        ("CREATE TABLE t WITH (connector = 'datagen', rows-p", {"per-second"}),
        ("CREATE TABLE t WITH (connector = 'datagen', top", set()),
        ("CREATE TABLE t WITH (path", set()),
        (
            "CREATE TABLE t (k INT, Vol DECIMAL(9, 2)) WITH (connector = 'datagen', f",
            {"fields.k.kind", "fields.Vol.kind"},
        ),
        ("CREATE TABLE t (k INT) WITH (path = '/x(1)', connector = 'k", {"kafka"}),
        ("CREATE TABLE t (k BIGINT PRI", {"PRIMARY"}),
        ("CREATE TABLE t (k BIGINT, pri", {"primary"}),
        ("CREATE TABLE t (k DECIMAL(9, 2), PRIMARY K", {"KEY"}),
        ("CREATE TABLE t (k BIGINT, PRIMARY KEY (k", {"k"}),
        ("CREATE TABLE t (k BIG", {"BIGINT"}),
        ("CREATE TABLE t (ts TIMESTAMP, WATERMARK F", {"FOR"}),
        ("CREATE TABLE t (ts TIMESTAMP, WATERMARK FOR t", {"ts"}),
        ("CREATE TABLE ", {"IF NOT EXISTS"}),
        ("CREATE TABLE b", set()),
        ("CREATE TEMPORARY V", {"VIEW"}),
        ("CREATE FUNCTION f RET", {"RETURNS"}),
        ("SELECT /*+ na", {"name("}),
        ("SELECT count(*) FROM bids GROUP BY RO", {"ROLLUP"}),
        ("SELECT window_", {"window_start", "window_end"}),
        ("SELECT * FROM bids WHERE ts > now() - INTERVAL '1' H", {"HOUR"}),
        ("SELECT au FROM bids WHERE pr", {"price", "primary"}),
        ("SELECT coun", {"count("}),
        ("SELECT my", {"my_function("}),
        ("SELECT count(*) FROM bids GROUP BY au", {"auction"}),
        ("SELECT * FROM bids AS b WHERE b.p", {"b.price"}),
        ("SELECT * FROM bids b WHERE b.", {"b.auction", "b.price", "b.ts"}),
        ("SELECT bids.t", {"bids.ts"}),
        ("STOP JOB t", {"totals"}),
        ("SET par", {"parallelism"}),
        ("RESET m", {"memory"}),
        (".h", {".help"}),
        (".mode c", {"csv"}),
        ("SELECT *\nFROM b", {"bids"}),
    ],
)
def test_completions(text: str, expected: set[str]) -> None:
    found = completions(text, NAMES)
    assert expected <= set(found)
    assert all(match.lower().startswith(completed_word(text).lower()) for match in found)
    if not expected:
        assert not found


def test_a_list_of_columns_offers_no_columns_of_other_tables() -> None:
    assert completions("CREATE TABLE t (k BIGINT PRI", NAMES) == ["PRIMARY"]
    assert completions("CREATE TABLE t (c", NAMES) == ["comment"]


def test_keywords_follow_the_case_of_the_word() -> None:
    assert completions("SELECT a wh", NAMES) == ["when", "where"]
    assert completions("SELECT a WH", NAMES) == ["WHEN", "WHERE"]
