"""Statements that only the shell has."""

import pytest

from statebed.errors import InputError
from statebed.sql.shell_statements import (
    AttachState,
    DescribeTable,
    DropDefinition,
    Droppable,
    ExplainStatement,
    QuitShell,
    ResetOption,
    ShowHelp,
    ShowList,
    ShownList,
    StopJob,
    dotted_names,
    parse_shell_text,
    without_limit,
)
from statebed.sql.source_text import SqlText
from statebed.sql.statement_parser import parse_query
from statebed.sql.statements import InsertInto, SelectQuery, SetOption


def test_statements_of_the_shell() -> None:
    def parsed(text: str) -> object:
        return parse_shell_text(SqlText(text))

    assert parsed("show tables;") == ShowList(ShownList.TABLES, None)
    assert parsed("SHOW FUNCTIONS LIKE 'date*'") == ShowList(ShownList.FUNCTIONS, "date*")
    assert parsed("SET;") == ShowList(ShownList.SETTINGS, None)
    assert parsed("QUIT") == parsed("exit;") == QuitShell()
    assert parsed("HELP") == ShowHelp()
    assert parsed("RESET") == ResetOption(None)
    described = parsed("DESC job.`my op`.t")
    assert isinstance(described, DescribeTable)
    assert described.name == ("job", "my op", "t")
    attached = parsed("ATTACH 's3://bucket/state'")
    assert isinstance(attached, AttachState)
    assert attached.location.text == "s3://bucket/state"
    stopped = parsed("STOP JOB bids WITH DRAIN")
    assert isinstance(stopped, StopJob)
    assert (stopped.name.text, stopped.drain) == ("bids", True)
    dropped = parsed("DROP TEMPORARY VIEW IF EXISTS v")
    assert isinstance(dropped, DropDefinition)
    assert (dropped.kind, dropped.name.text, dropped.if_exists) == (Droppable.VIEW, "v", True)


def test_other_statements_are_those_of_a_pipeline() -> None:
    text = "EXECUTE STATEMENT SET BEGIN INSERT INTO a SELECT 1; INSERT INTO b SELECT 2; END"
    statements = parse_shell_text(SqlText(text))
    assert isinstance(statements, list)
    assert [type(entry) for entry in statements] == [InsertInto, InsertInto]
    (option,) = parse_shell_text(SqlText("SET 'job' = 'x'"))  # type: ignore[misc]
    assert isinstance(option, SetOption)


def test_explain_keeps_the_places_of_the_text() -> None:
    source = SqlText("EXPLAIN\nSELECT a FROM t;")
    explained = parse_shell_text(source)
    assert isinstance(explained, ExplainStatement)
    assert isinstance(explained.statement, SelectQuery)
    assert source.slice(explained.statement.query.span) == "SELECT a FROM t"
    assert source.line_and_column(explained.statement.query.span.start) == (2, 1)


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ("SHOW TABLE", "expected one of TABLES", "SHOW followed by"),
        ("DESCRIBE", "expected the name of a table", "DESCRIBE table"),
        ("ATTACH state", "expected a state location", "ATTACH 'folder or URL'"),
        ("STOP bids", "expected JOB", "STOP JOB name"),
        ("DROP DATABASE x", "expected TABLE, VIEW or FUNCTION", "DROP TABLE"),
        ("EXPLAIN CREATE VIEW v AS SELECT 1", "expected SELECT or INSERT INTO", "EXPLAIN SELECT"),
        ("SHOW TABLES LIKE b", "expected a pattern", "LIKE 'b*'"),
        ("UPDATE t SET a = 1", "UPDATE is not supported", "PRIMARY KEY"),
    ],
)
def test_a_mistake_is_shown_in_the_text(text: str, what: str, fix: str) -> None:
    with pytest.raises(InputError) as raised:
        parse_shell_text(SqlText(text))
    assert what in raised.value.what
    assert fix in raised.value.fix
    assert "^" in raised.value.where


def test_a_limit_at_the_end_is_that_of_the_shell() -> None:
    source = SqlText("SELECT a FROM (SELECT a FROM t LIMIT 3) LIMIT 10")
    query, limit = without_limit(parse_query(source))
    assert limit == 10
    assert source.slice(query.span) == "SELECT a FROM (SELECT a FROM t LIMIT 3)"
    inner = parse_query(SqlText("SELECT a FROM (SELECT a FROM t LIMIT 3)"))
    assert without_limit(inner) == (inner, None)


def test_names_with_dots() -> None:
    source = SqlText('SELECT b.x, "my-job".op.t.y FROM bids.totals.groups AS b JOIN `a b`.c ON 1.5 = t . z')
    names = dotted_names(source, parse_query(source).tokens)
    assert [source.slice(name.span) for name in names if name.is_table] == ["bids.totals.groups", "`a b`.c"]
    assert [name.parts for name in names] == [
        ("b", "x"),
        ("my-job", "op", "t", "y"),
        ("bids", "totals", "groups"),
        ("a b", "c"),
        ("t", "z"),
    ]
