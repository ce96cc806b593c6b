"""Window functions, temporal joins and hints are rewritten for Spark, and places lead back to the user's text."""

import pytest

from statebed.errors import InputError
from statebed.sql.query_blocks import block_at, blocks_of
from statebed.sql.query_rewriter import SparkQuery, rewrite_query
from statebed.sql.source_text import SqlSpan, SqlText
from statebed.sql.statement_parser import parse_query, parse_statements
from statebed.sql.statements import InsertInto


def rewritten(text: str) -> SparkQuery:
    source = SqlText(text)
    return rewrite_query(source, parse_query(source), label="out", event_times={"bids": "ts"})


TUMBLED = (
    "SELECT * FROM (SELECT * EXCEPT (__window), __window.start AS window_start, __window.end AS window_end "
    "FROM (SELECT *, window(ts, '1 minute') AS __window FROM bids))"
)


@pytest.mark.parametrize(
    "call",
    [
        "TABLE(TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '1' MINUTE))",
        "TABLE(tumble(TABLE bids, DESCRIPTOR(ts), INTERVAL '60' SECONDS))",
        "TABLE(TUMBLE(DATA => TABLE bids, TIMECOL => DESCRIPTOR(ts), SIZE => INTERVAL '1' MINUTE))",
        "TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '1 minute')",
        "TUMBLE(bids, ts, '1 minute')",
    ],
)
def test_spellings_of_a_table_function(call: str) -> None:
    assert rewritten(f"SELECT * FROM {call}").text == TUMBLED


@pytest.mark.parametrize(
    ("call", "window"),
    [
        ("TUMBLE(t, ts, '1 hour', '15 minutes')", "window(ts, '1 hour', '1 hour', '15 minutes') AS __window"),
        ("HOP(t, ts, '10 seconds', '1 minute')", "window(ts, '1 minute', '10 seconds') AS __window"),
        ("HOP(t, ts, '10 s', '1 min', '5 s')", "window(ts, '1 minute', '10 seconds', '5 seconds') AS __window"),
        (
            "SESSION(TABLE t PARTITION BY k, DESCRIPTOR(ts), '5 minutes')",
            "session_window(ts, '5 minutes') AS `__window_session[\"k\"]`",
        ),
        (
            "SESSION(TABLE t PARTITION BY (k, `a`), DESCRIPTOR(ts), '5 minutes')",
            'session_window(ts, \'5 minutes\') AS `__window_session["k", "a"]`',
        ),
        ("SESSION(t, ts, '5 minutes')", "session_window(ts, '5 minutes') AS `__window_session[]`"),
        ("CUMULATE(t, ts, '1 hour', '1 day')", "window(ts, '1 day') AS __window_cumulate_3600000000"),
    ],
)
def test_window_table_functions(call: str, window: str) -> None:
    assert f"(SELECT *, {window} FROM t)" in rewritten(f"SELECT * FROM {call}").text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("TUMBLE(ts, INTERVAL '1' MINUTE)", "window(ts, '1 minute')"),
        ("TUMBLE_START(ts, INTERVAL '1' MINUTE)", "window(ts, '1 minute').start"),
        ("HOP_END(b.ts, INTERVAL '1' MINUTE, INTERVAL '1' HOUR)", "window(b.ts, '1 hour', '1 minute').end"),
        ("TUMBLE_ROWTIME(ts, INTERVAL '1' MINUTE)", "(window(ts, '1 minute').end - INTERVAL '0.000001' SECOND)"),
        ("SESSION(ts, INTERVAL '1' MINUTE)", "session_window(ts, '1 minute')"),
        ("tumble(interval '1 minute')", "window(`ts`, '1 minute')"),
        ("hop(interval '10 seconds', interval '1 minute')", "window(`ts`, '1 minute', '10 seconds')"),
        ("session(interval '20 seconds')", "session_window(`ts`, '20 seconds')"),
        ("$$it's \\d$$", "'it\\'s \\\\d'"),
        ("CAST(x AS VARCHAR)", "CAST(x AS STRING)"),
        ("CAST(x AS VARCHAR(3))", "CAST(x AS VARCHAR(3))"),
        ("t.tumble(x)", "t.tumble(x)"),
    ],
)
def test_expressions_of_other_systems(text: str, expected: str) -> None:
    assert rewritten(f"SELECT a FROM bids GROUP BY {text}").text == f"SELECT a FROM bids GROUP BY {expected}"
    assert rewritten(f"SELECT {text}, a FROM bids").text == f"SELECT {expected}, a FROM bids"


def test_window_time_is_there_if_it_is_read() -> None:
    assert "window_time(__window) AS window_time" in rewritten("SELECT window_time FROM TUMBLE(t, ts, '1 minute')").text


def test_a_table_function_over_a_query_and_a_join_of_two() -> None:
    text = rewritten(
        "SELECT * FROM TUMBLE((SELECT $$a$$ FROM b), ts, '1 s') x JOIN HOP(c, ts, '1 s', '2 s') AS y ON 1"
    ).text
    assert "AS __window FROM (SELECT 'a' FROM b))) x JOIN (SELECT" in text
    assert text.endswith("FROM c)) AS y ON 1")


@pytest.mark.parametrize("alias", ["r", "AS r"])
def test_a_temporal_join_marks_the_versioned_table(alias: str) -> None:
    text = rewritten(f"SELECT * FROM o JOIN rates FOR SYSTEM_TIME AS OF o.ts {alias} ON o.c = r.c").text
    assert text == "SELECT * FROM o JOIN (SELECT * FROM rates AS __as_of) AS r ON o.ts IS NOT NULL AND o.c = r.c"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("SELECT * FROM TUMBLE(bids, ts)", "TUMBLE lacks its size"),
        ("SELECT * FROM TUMBLE(bids, ts, )", "lacks an argument"),
        ("SELECT * FROM TUMBLE(bids, ts, '1 s', '1 s', '1 s')", "does not take this argument"),
        ("SELECT * FROM TUMBLE(bids, ts, '1 month')", "calendar unit"),
        ("SELECT * FROM TUMBLE(bids, ts, '0 seconds')", "must be longer than 0"),
        ("SELECT * FROM TUMBLE(bids, ts + 1, '1 s')", "expected the end"),
        ("SELECT * FROM TUMBLE(SIZE => '1 s', SIZE => '2 s')", "does not take this argument"),
        ("SELECT * FROM HOP(bids, ts, '2 s', '1 s')", "must not be longer than its size"),
        ("SELECT * FROM CUMULATE(bids, ts, '2 s', '5 s')", "must be a multiple of its step"),
        ("SELECT * FROM bids GROUP BY CUMULATE(ts, '1 s', '2 s')", "CUMULATE is a table function"),
        ("SELECT * FROM other GROUP BY tumble(interval '1 minute')", "has no time column"),
        ("SELECT * FROM TABLE(TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '1:30' MINUTE TO SECOND))", "two units"),
        ("SELECT * FROM a JOIN b FOR SYSTEM_TIME AS OF a.ts USING (k)", "expected ON"),
        ("SELECT * FROM a JOIN b FOR SYSTEM_TIME AS OF 1 ON a.k = b.k", "expected the event-time column"),
        ("SELECT /*+ NAME('a b') */ 1", "a b"),
        ("SELECT /*+ NAME() */ 1", "name"),
        ("SELECT /*+ NAME('a'), NAME('b') */ 1", "this hint cannot be read"),
        ("SELECT /*+ NAME('a') */ /*+ NAME('b') */ 1", "NAME hint already"),
        ("-- name: a\nSELECT -- name: b\n1", "name already"),
        ("SELECT -- name: a/b\n1", "a/b"),
    ],
)
def test_mistakes_point_into_the_text(text: str, what: str) -> None:
    with pytest.raises(InputError) as raised:
        rewritten(text)
    assert what in raised.value.what
    assert "^" in raised.value.where
    assert raised.value.fix


def test_places_of_the_rewritten_text_lead_back() -> None:
    text = "SELECT bidz\nFROM TABLE(TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '1' MINUTE)) b\nWHERE wrong > 1"
    query = rewritten(text)
    for word in ("bidz", "bids", "wrong"):
        start = query.text.index(word)
        origin = query.rewritten.origin(SqlSpan(start, start + len(word)))
        assert text[origin.start : origin.end] == word
    generated = query.text.index("window(ts")
    origin = query.rewritten.origin(SqlSpan(generated, generated + 3))
    assert text[origin.start : origin.end].startswith("TUMBLE(")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("-- name: minutes\nSELECT k FROM bids", ["minutes"]),
        ("-- a remark\n--name: minutes\n-- another\nWITH a AS (SELECT 1) SELECT k FROM bids", ["minutes", None]),
        ("SELECT -- Name: minutes\n k FROM bids", ["minutes"]),
        ("SELECT k FROM (\n-- name: inside\nSELECT k FROM bids)", [None, "inside"]),
        ("SELECT k -- name: minutes\n FROM bids", [None]),
        ("SELECT '-- name: minutes' FROM bids", [None]),
    ],
)
def test_a_comment_beside_a_select_names_its_block(text: str, names: list[str | None]) -> None:
    assert [block.hint for block in rewritten(text).blocks] == names


def test_a_comment_above_an_earlier_statement_names_nothing() -> None:
    source = SqlText("-- name: first\nINSERT INTO t SELECT 1;\n-- name: second\nINSERT INTO t SELECT k FROM bids")
    hints = [
        blocks_of(source, statement.query.tokens, label="t")[0].hint
        for statement in parse_statements(source)
        if isinstance(statement, InsertInto)
    ]
    assert hints == ["first", "second"]


def test_unnest_is_explode() -> None:
    assert rewritten("SELECT unnest(tags) AS tag FROM bids").text == "SELECT explode(tags) AS tag FROM bids"
    joined = rewritten("SELECT tag FROM bids CROSS JOIN UNNEST(tags) AS t(tag)").text
    assert joined == "SELECT tag FROM bids CROSS JOIN LATERAL explode(tags) AS t(tag)"


@pytest.mark.parametrize(
    ("following", "label"),
    [
        ("LATERAL VIEW explode(tags) AS tag", "out"),
        ("NATURAL JOIN d", "out"),
        ("HAVING n > 3", "out"),
        ("LIMIT 3", "out"),
        ("EXCEPT SELECT 1", "out"),
        ("AS `lateral` LATERAL VIEW explode(tags) AS tag", "lateral"),
        ("hot LATERAL VIEW explode(tags) AS tag", "hot"),
    ],
)
def test_a_word_behind_a_subquery_is_its_name_only_if_it_is_no_clause(following: str, label: str) -> None:
    query = rewritten(f"SELECT * FROM (SELECT a FROM bids) {following}")
    place = query.rewritten.source.text.index("SELECT a")
    assert block_at(query.blocks, SqlSpan(place, place + 1)).label == label


def test_blocks_are_named_after_ctes_aliases_and_hints() -> None:
    text = """
    WITH per_minute AS (SELECT k, count(*) n FROM bids GROUP BY k),
         hot AS (SELECT /*+ NAME('hottest') */ * FROM (SELECT inner1 FROM per_minute) WHERE n = 1)
    SELECT outer1 FROM hot JOIN (SELECT sub1 FROM x GROUP BY 1) AS counts ON 1 = 1
    """
    query = rewritten(text)

    def named(word: str) -> tuple[str, str | None]:
        place = text.index(word)
        block = block_at(query.blocks, SqlSpan(place, place + len(word)))
        return block.label, block.hint

    assert named("count(*)") == ("per_minute", None)
    assert named("WHERE n = 1") == ("hot", "hottest")
    assert named("inner1") == ("hot", None)
    assert named("outer1") == ("out", None)
    assert named("sub1") == ("counts", None)


def test_seconds_since_1970_are_computed_from_microseconds() -> None:
    seconds = "CAST(unix_micros({}) / 1000000BD AS DECIMAL(20, 6))"
    assert rewritten("SELECT extract(epoch FROM ts), 1 FROM bids").text == f"SELECT {seconds.format('ts')}, 1 FROM bids"
    assert rewritten("SELECT date_part('EPOCH', f(ts)) FROM bids").text == f"SELECT {seconds.format('f(ts)')} FROM bids"
    assert rewritten("SELECT extract(hour FROM ts) FROM bids").text == "SELECT extract(hour FROM ts) FROM bids"
