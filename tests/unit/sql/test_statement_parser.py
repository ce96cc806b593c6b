"""Statements are parsed with the place of every part; others are refused by name."""

import pytest

from statebed.errors import InputError
from statebed.sql.refused_statements import REFUSED_CLAUSES, REFUSED_STATEMENTS
from statebed.sql.source_text import SqlText
from statebed.sql.statement_parser import parse_query, parse_statements
from statebed.sql.statements import (
    CreateFunction,
    CreateTable,
    CreateView,
    InsertInto,
    SelectQuery,
    SetOption,
)

BIDS = """
CREATE TABLE bids (
  auction BIGINT NOT NULL,
  channel VARCHAR,
  tags ARRAY<ARRAY<STRING>>,
  shop ROW<id INT, name STRING> COMMENT 'where',
  ms BIGINT,
  ts AS timestamp_millis(ms),
  at TIMESTAMP(3) WITH LOCAL TIME ZONE,
  WATERMARK FOR ts AS ts - INTERVAL '5' SECOND,
  PRIMARY KEY (auction) NOT ENFORCED
) WITH ('connector' = 'filesystem', path = 'in', max-files.per = 2, header = true)
"""


def table(text: str) -> CreateTable:
    (found,) = parse_statements(SqlText(text))
    assert isinstance(found, CreateTable)
    return found


def test_a_table_with_everything() -> None:
    found = table(BIDS)
    assert found.name.text == "bids"
    assert [(str(one.name), str(one.type_text)) for one in found.columns] == [
        ("auction", "BIGINT"),
        ("channel", "STRING"),
        ("tags", "ARRAY<ARRAY<STRING>>"),
        ("shop", "STRUCT<`id`: INT, `name`: STRING>"),
        ("ms", "BIGINT"),
        ("ts", "None"),
        ("at", "TIMESTAMP"),
    ]
    assert [one.is_nullable for one in found.columns[:2]] == [False, True]
    assert found.watermark is not None
    assert (found.watermark.column.text, found.watermark.delay_us) == ("ts", 5_000_000)
    assert [str(one) for one in found.primary_key] == ["auction"]
    assert {name: str(value) for name, value in found.options.items()} == {
        "connector": "filesystem",
        "path": "in",
        "max-files.per": "2",
        "header": "true",
    }


@pytest.mark.parametrize(
    "delay", ["INTERVAL '90' SECOND", "INTERVAL '90 seconds'", "INTERVAL 90 SECONDS", "INTERVAL '1 minute 30 seconds'"]
)
def test_intervals_may_be_written_as_in_flink_spark_and_postgres(delay: str) -> None:
    found = table(f"CREATE TABLE t (ts TIMESTAMP, WATERMARK FOR ts AS ts - {delay}) WITH (connector = 'x')")
    assert found.watermark is not None
    assert found.watermark.delay_us == 90_000_000


def test_a_watermark_without_delay() -> None:
    found = table("CREATE TABLE t (ts TIMESTAMP, WATERMARK FOR ts AS ts) WITH (connector = 'x')")
    assert found.watermark is not None
    assert found.watermark.delay_us == 0


def test_an_option_value_is_not_shown_by_repr() -> None:
    assert "secret" not in repr(table("CREATE TABLE t WITH (connector = 'x', password = 'secret')"))


def test_the_other_statements() -> None:
    text = """
    CREATE OR REPLACE TEMPORARY VIEW big (a, b) AS SELECT 1, 2;
    CREATE TEMPORARY FUNCTION shout AS 'my.functions:shout' LANGUAGE PYTHON;
    CREATE FUNCTION half RETURNS DECIMAL(10, 2) AS 'f:half';
    SET 'parallelism' = '4';
    SET memory.limit = 2 g;
    INSERT INTO out (a) SELECT a FROM big;
    INSERT INTO TABLE out (SELECT a FROM big);
    WITH x AS (SELECT 1) SELECT * FROM x;
    """
    found = parse_statements(SqlText(text))
    assert [type(one) for one in found] == [
        CreateView,
        CreateFunction,
        CreateFunction,
        SetOption,
        SetOption,
        InsertInto,
        InsertInto,
        SelectQuery,
    ]
    view, shout, half, parallelism, memory, insert, nested, _ = found
    assert isinstance(view, CreateView)
    assert ([str(one) for one in view.columns], view.is_replacement) == (["a", "b"], True)
    assert isinstance(shout, CreateFunction)
    assert (shout.target.text, shout.returns) == ("my.functions:shout", None)
    assert isinstance(half, CreateFunction)
    assert str(half.returns) == "DECIMAL(10, 2)"
    assert isinstance(parallelism, SetOption)
    assert isinstance(memory, SetOption)
    assert (str(memory.name), str(memory.value)) == ("memory.limit", "2 g")
    assert isinstance(insert, InsertInto)
    assert [str(one) for one in insert.columns] == ["a"]
    assert isinstance(nested, InsertInto)
    assert nested.columns == ()


def test_a_statement_set_of_flink_is_read_as_its_inserts() -> None:
    found = parse_statements(
        SqlText("EXECUTE STATEMENT SET BEGIN INSERT INTO a SELECT 1; INSERT INTO b SELECT 2; END; SELECT 3")
    )
    assert [type(one) for one in found] == [InsertInto, InsertInto, SelectQuery]


@pytest.mark.parametrize("words", REFUSED_STATEMENTS, ids=" ".join)
def test_a_refused_statement_says_what_to_do(words: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as raised:
        parse_statements(SqlText(f"SELECT 1;\n  {' '.join(words)} x", "p.sql"))
    assert raised.value.what == REFUSED_STATEMENTS[words][0]
    assert raised.value.fix == REFUSED_STATEMENTS[words][1]
    assert raised.value.where.startswith("p.sql, line 2, column 3\n")
    assert raised.value.where.endswith("^" * len(" ".join(words)))


@pytest.mark.parametrize("word", REFUSED_CLAUSES)
def test_a_refused_clause_says_what_to_do(word: str) -> None:
    with pytest.raises(InputError) as raised:
        parse_statements(SqlText(f"SELECT *\nFROM t {word} (x)"))
    assert (raised.value.what, raised.value.fix) == REFUSED_CLAUSES[word]
    assert "line 2, column 8" in raised.value.where


@pytest.mark.parametrize("text", ["SELECT t.pivot, x AS qualify FROM t", "SELECT pivot FROM t"])
def test_a_refused_word_may_be_a_column(text: str) -> None:
    parse_statements(SqlText(text))


WRONG = {
    "SELEC 1": ("expected a statement", "CREATE TABLE"),
    "CREATE THING x": ("expected TABLE, VIEW or FUNCTION", "INSERT INTO"),
    "CREATE TABLE t (a BIGINT)": ("expected WITH, but the statement ends", "WITH (connector"),
    "CREATE TABLE t (a BIGINT, A STRING) WITH (connector = 'x')": ("two columns are called 'A'", "rename"),
    "CREATE TABLE t (a BIGINT, PRIMARY KEY (b)) WITH (connector = 'x')": ("no column 'b'", "the columns are a"),
    "CREATE TABLE t (a BIGINT, WATERMARK FOR ts AS ts) WITH (connector = 'x')": ("no column 'ts'", "the columns are"),
    "CREATE TABLE t (ts TIMESTAMP, WATERMARK FOR ts AS now() - 1) WITH (connector = 'x')": (
        "must be ts minus an interval",
        "WATERMARK FOR ts AS ts - INTERVAL",
    ),
    "CREATE TABLE t (ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '1' MONTH) WITH (connector = 'x')": (
        "calendar unit",
        "INTERVAL '5 seconds'",
    ),
    "CREATE TABLE t (ts TIMESTAMP, WATERMARK FOR ts AS ts - 5) WITH (connector = 'x')": ("not a duration", "INTERVAL"),
    "CREATE TABLE t (a INT UNSIGNED) WITH (connector = 'x')": ("unsigned", "larger type"),
    "CREATE TABLE t (a INT METADATA) WITH (connector = 'x')": ("METADATA", "without METADATA"),
    "CREATE TABLE t (a 5) WITH (connector = 'x')": ("expected a type", "BIGINT"),
    "CREATE TABLE t (a INT) PARTITIONED BY (a) WITH (connector = 'x')": (
        "PARTITIONED is not supported",
        "leave it out",
    ),
    "CREATE TABLE t USING parquet": ("USING is not supported", "WITH (connector"),
    "CREATE TABLE t WITH (connector = x)": ("expected a value in quotes, but there is 'x'", "WITH"),
    "CREATE TABLE t WITH (a = 'x', a = 'y')": ("the option 'a' is given twice", "remove one"),
    "CREATE TABLE t WITH (connector = 'x') AS SELECT 1": ("AS SELECT is not supported", "INSERT INTO t SELECT"),
    "CREATE TABLE t AS SELECT 1": ("expected (", "INSERT INTO name SELECT"),
    "CREATE TABLE db.t WITH (connector = 'x')": ("one part", "leave the database out"),
    "CREATE VIEW v SELECT 1": ("expected AS", "CREATE TEMPORARY VIEW"),
    "CREATE VIEW v AS": ("expected a query", "SELECT"),
    "CREATE VIEW db.v AS SELECT 1": ("one part", "leave the database out"),
    "CREATE FUNCTION f AS 'module.function'": ("not of the form module:function", "CREATE FUNCTION"),
    "CREATE FUNCTION f AS 'a:b' LANGUAGE JAVA": ("expected PYTHON", "written in Python"),
    "INSERT INTO t": ("expected a query", "INSERT INTO table SELECT"),
    "WITH c AS (SELECT 1) INSERT INTO t SELECT 2": (
        "INSERT INTO stands inside a query",
        "INSERT INTO table WITH",
    ),
    "FROM a INSERT INTO t SELECT k": ("INSERT INTO stands inside a query", "INSERT INTO table WITH"),
    "INSERT INTO t UPDATE": ("expected a query", "INSERT INTO table SELECT"),
    "SET x": ("expected =", "SET 'name' = 'value'"),
    "SET x =": ("expected a value", "SET 'name' = 'value'"),
}


@pytest.mark.parametrize("text", WRONG)
def test_a_mistake_is_shown_with_what_to_do(text: str) -> None:
    with pytest.raises(InputError) as raised:
        parse_statements(SqlText(text))
    what, fix = WRONG[text]
    assert what in raised.value.what
    assert fix in raised.value.fix
    assert "^" in raised.value.where


@pytest.mark.parametrize("text", ["", "SELECT 1; SELECT 2", "SET a = 'b'"])
def test_only_one_query_is_a_query(text: str) -> None:
    with pytest.raises(InputError, match="expected"):
        parse_query(SqlText(text))
