"""Lines that are typed into a shell become statements at their semicolons."""

import pytest

from statebed.sql.statement_buffer import StatementBuffer


def statements(*lines: str) -> tuple[list[str], StatementBuffer]:
    buffer = StatementBuffer()
    return [statement for line in lines for statement in buffer.add(line)], buffer


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
    assert buffer.rest() == ["SELECT 2 -- the last one"]
    assert buffer.is_empty
    assert buffer.rest() == []
