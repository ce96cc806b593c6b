"""Text is split into statements whatever stands in quotes and comments, and errors point to its lines."""

import pytest

from statebed.errors import InputError
from statebed.sql.source_text import SqlSpan, SqlText
from statebed.sql.sql_tokens import SqlTokenKind, tokens_of
from statebed.sql.statement_parser import split_statements


def texts(text: str) -> list[str]:
    """Source text of each statement, from its first token to its last."""
    source = SqlText(text)
    return [source.slice(tokens[0].span.to(tokens[-1].span)) for tokens in split_statements(source)]


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("SELECT 1; SELECT 2", ["SELECT 1", "SELECT 2"]),
        (";;SELECT 1;;", ["SELECT 1"]),
        ("SELECT ';'; SELECT \";\"", ["SELECT ';'", 'SELECT ";"']),
        ("SELECT 'it''s; fine'; SELECT 2", ["SELECT 'it''s; fine'", "SELECT 2"]),
        (r"SELECT 'a\';b'; SELECT 2", [r"SELECT 'a\';b'", "SELECT 2"]),
        (r"SELECT r'\';SELECT 2", [r"SELECT r'\'", "SELECT 2"]),
        ("SELECT `a;b`; SELECT 2", ["SELECT `a;b`", "SELECT 2"]),
        ("SELECT 1 -- a; b\n; SELECT 2", ["SELECT 1", "SELECT 2"]),
        ("SELECT 1 -- a \\\n; still a comment\n; SELECT 2", ["SELECT 1", "SELECT 2"]),
        ("SELECT /* a; /* b; */ c; */ 1; SELECT 2", ["SELECT /* a; /* b; */ c; */ 1", "SELECT 2"]),
        ("SELECT $$a;'b$$; SELECT $t$ $$ ; $t$", ["SELECT $$a;'b$$", "SELECT $t$ $$ ; $t$"]),
        ("-- only a comment", []),
    ],
)
def test_statements_end_at_semicolons_outside_quotes_and_comments(text: str, statements: list[str]) -> None:
    assert texts(text) == statements


def test_values_of_strings_names_and_hints() -> None:
    found = tokens_of(SqlText(r"""'a''b\n' r'\n' $$it's$$ `x``y` /*+ NAME('p') */ Word 1.5e3 2L =>"""))
    assert [token.value for token in found] == [
        "a'b\n",
        r"\n",
        "it's",
        "x`y",
        " NAME('p') ",
        "WORD",
        "1.5e3",
        "2L",
        "=>",
    ]
    assert [token.kind for token in found][4:8] == [
        SqlTokenKind.HINT,
        SqlTokenKind.WORD,
        SqlTokenKind.NUMBER,
        SqlTokenKind.NUMBER,
    ]


@pytest.mark.parametrize("text", ["SELECT 'a", 'SELECT "a', "SELECT `a", "SELECT /* a", "SELECT $$a", "SELECT /*+ a"])
def test_what_is_never_closed_is_shown_where_it_is_opened(text: str) -> None:
    with pytest.raises(InputError, match="never closed") as raised:
        split_statements(SqlText(text))
    assert "column 8" in raised.value.where


@pytest.mark.parametrize(("text", "what"), [("SELECT (1", "never closed"), ("SELECT 1)", "closes nothing")])
def test_parentheses_are_balanced(text: str, what: str) -> None:
    with pytest.raises(InputError, match=what):
        split_statements(SqlText(text))


def test_an_error_shows_the_line_with_carets() -> None:
    source = SqlText("SELECT a,\n\tbidz.x\nFROM bids", "pipeline.sql")
    error = source.mistake("there is no `bidz`", SqlSpan(11, 15), fix="write bids")
    assert str(error) == (
        "[INPUT] there is no `bidz`\n"
        "  where: pipeline.sql, line 2, column 2\n"
        "    2 | \tbidz.x\n"
        "      | \t^^^^\n"
        "  what to do: write bids"
    )


def test_carets_stand_below_wide_characters() -> None:
    lines = SqlText("'日本' x").shown(SqlSpan(5, 6)).splitlines()
    assert lines[1:] == ["    1 | '日本' x", "      |        ^"]


def test_a_long_line_is_cut_around_the_place() -> None:
    source = SqlText("SELECT " + "a, " * 200 + "bad")
    shown = source.shown(SqlSpan(len(source.text) - 3, len(source.text))).splitlines()
    assert len(shown[1]) < 180
    assert shown[1].endswith("bad")
    assert shown[2].endswith("^^^")
    assert len(shown[1]) == len(shown[2])
