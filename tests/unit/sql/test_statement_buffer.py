"""Lines that are typed into a shell become statements at their semicolons."""

import pytest

from statebed.sql.source_text import SqlSpan
from statebed.sql.statement_buffer import StatementBuffer


def statements(*lines: str) -> tuple[list[str], StatementBuffer]:
    buffer = StatementBuffer()
    return [statement.text for line in lines for statement in buffer.add(line)], buffer


@pytest.mark.parametrize(
    ("lines", "complete", "mark"),
    [
        (["SELECT 1;"], ["SELECT 1;"], ""),
        (["SELECT 1", "FROM t"], [], "-"),
        (["SELECT 1", "FROM t;"], ["SELECT 1\nFROM t;"], ""),
        (["SELECT 1; SELECT 2; SEL"], ["SELECT 1;", "SELECT 2;"], "-"),
        (["SELECT ';'", ";"], ["SELECT ';'\n;"], ""),
        (["SELECT 'a;"], [], "'"),
        (["SELECT `a;"], [], "`"),
        (["SELECT /* a;"], [], "*"),
        (["SELECT 1 -- no end;"], [], "-"),
        (["SELECT count(", "DISTINCT a"], [], "("),
        (["SELECT $$a;b$$;"], ["SELECT $$a;b$$;"], ""),
        (["-- only a comment"], [], ""),
        ([";", ";;", "  "], [], ""),
        (["EXECUTE STATEMENT SET BEGIN", "INSERT INTO a SELECT 1;"], [], "-"),
        (
            ["EXECUTE STATEMENT SET BEGIN INSERT INTO a SELECT 1;", "INSERT INTO b SELECT 2; END; SELECT 3;"],
            ["EXECUTE STATEMENT SET BEGIN INSERT INTO a SELECT 1;\nINSERT INTO b SELECT 2; END;", "SELECT 3;"],
            "",
        ),
    ],
)
def test_lines_become_statements(lines: list[str], complete: list[str], mark: str) -> None:
    found, buffer = statements(*lines)
    assert found == complete
    assert buffer.is_empty is (mark == "")
    if mark:
        assert buffer.open_mark == mark


def test_the_rest_of_the_input_needs_no_semicolon() -> None:
    _, buffer = statements("SELECT 1;", "SELECT 2 -- the last one")
    assert [statement.text for statement in buffer.rest()] == ["SELECT 2 -- the last one"]
    assert buffer.is_empty
    assert buffer.rest() == []


def test_statements_know_their_place_in_the_input() -> None:
    buffer = StatementBuffer(name="standard input")
    lines = ["-- jobs", "SELECT 1;  SELECT", "", "  x;", "", "SELECT y FROM t"]
    statements = [text for number, line in enumerate(lines, 1) for text in buffer.add(line, number=number)]
    statements += buffer.rest()
    places = [
        statement.shown(SqlSpan(at, at + 1)).splitlines()[0]
        for statement, at in zip(statements, (8, 10, 7), strict=True)
    ]
    assert [text.partition(", ")[2] for text in places] == ["line 2, column 9", "line 4, column 3", "line 6, column 8"]
    assert places[0].startswith("standard input, ")
