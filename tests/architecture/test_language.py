"""Prose that nobody has to read twice: docstrings begin with a verb or a noun, and a few phrases are not used.

The rules are those of CONTRIBUTING.md. A docstring that begins with a bare preposition or pronoun ("Of one query.",
"What is asked.") makes sense only to somebody who knows the answer already.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "statebed"
MODULES = sorted(path for path in SOURCE.rglob("*.py") if not path.name.endswith("_pb2.py"))
OPENINGS = frozenset(
    [
        "Of",
        "By",
        "For",
        "Those",
        "Whose",
        "What",
        "Which",
        "Who",
        "Whom",
        "So",
        "As",
        "With",
        "From",
        "In",
        "To",
        "None",
        "It",
        "Its",
    ]
)
PHRASES = re.compile(
    r"\b(in vain|so many|so often|(is|are|was|were) told|nobody|has its way|whoever|what became|told apart"
    r"|(is|are) asked|goes on|go on)\b",
    re.IGNORECASE,
)


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of every docstring, including those of fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in node.body:
                if (
                    isinstance(statement, ast.Expr)
                    and isinstance(statement.value, ast.Constant)
                    and isinstance(statement.value.value, str)
                ):
                    yield statement.lineno, statement.value.value


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of every string and comment."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in {tokenize.STRING, tokenize.COMMENT}:
            yield token.start[0], token.string


def openings(path: Path) -> list[str]:
    return [
        f"{path.relative_to(SOURCE)}:{line}: {text.strip().splitlines()[0]}"
        for line, text in docstrings(ast.parse(path.read_text()))
        if re.match(r"\w*", text.strip()).group() in OPENINGS  # type: ignore[union-attr]  # it matches any text
    ]


def phrases(path: Path) -> list[str]:
    return [
        f"{path.relative_to(SOURCE)}:{line}: {match.group()!r}"
        for line, text in prose(path.read_text())
        if (match := PHRASES.search(text))
    ]


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    wrong = [line for path in MODULES for line in openings(path)]
    assert not wrong, "\n".join(wrong)


def test_phrases_that_need_reading_twice_are_not_used() -> None:
    wrong = [line for path in MODULES for line in phrases(path)]
    assert not wrong, "\n".join(wrong)


def test_the_rules_find_what_they_forbid() -> None:
    tree = ast.parse('"""Of one query."""\nx = 1\n"""So many rows."""\n')
    assert [text for _, text in docstrings(tree)] == ["Of one query.", "So many rows."]
    assert PHRASES.search("# as so many rows")
    assert not PHRASES.search("# many rows")
