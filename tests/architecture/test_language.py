"""Rules for prose: docstrings begin with a verb or a noun, and a few phrases are not used.

The rules are those of CONTRIBUTING.md. A docstring that begins with a bare preposition or pronoun ("Of one query.",
"By which rows are sorted.") makes sense only to a reader who knows the answer already.

In the package, the phrases are also forbidden in strings, which users read, and in the templates of the dashboard; so
they are in all documents. In tests, benchmarks, scripts and examples, strings are data.
"""

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(path for path in (ROOT / "src" / "statebed").rglob("*.py") if not path.name.endswith("_pb2.py"))
OTHERS = sorted(path for folder in ("tests", "bench", "scripts", "examples") for path in (ROOT / folder).rglob("*.py"))
TEXTS = sorted(
    path
    for path in (
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "src" / "statebed" / "ui" / "templates").rglob("*.html"),
    )
    if path.name != "error-messages.md"  # it quotes mistakes; the texts of the package are read themselves
)
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
        "How",
        "Where",
        "Why",
        "When",
        "Until",
        "Over",
        "Around",
        "On",
        "Without",
        "Same",
    ]
)
PHRASES = re.compile(
    r"\b(in vain|so many|so often|(is|are|was|were) told|nobody|has its way|whoever|what became|told apart"
    r"|(is|are) asked|goes on|go on)\b",
    re.IGNORECASE,
)


OPENING = re.compile(rf"""["']\s*({"|".join(OPENINGS)})\b""")
"""Finds every docstring that begins so, and a few other strings: most files need not be parsed."""


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


def docstrings_and_comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of every docstring and comment."""
    yield from docstrings(ast.parse(source))
    for line, text in prose(source):
        if text.startswith("#"):
            yield line, text


def text_outside_code(source: str) -> Iterator[tuple[int, str]]:
    """Yield line number and text of every line of a document that is not code."""
    is_code = False
    for line, text in enumerate(source.splitlines(), 1):
        if text.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            yield line, re.sub(r"`[^`]*`", "", text)


def openings(path: Path) -> list[str]:
    source = path.read_text()
    if not OPENING.search(source):
        return []
    return [
        f"{path.relative_to(ROOT)}:{line}: {text.strip().splitlines()[0]}"
        for line, text in docstrings(ast.parse(source))
        if re.match(r"\w*", text.strip()).group() in OPENINGS  # type: ignore[union-attr]  # it matches any text
    ]


def phrases(path: Path, texts: Callable[[str], Iterator[tuple[int, str]]] = prose) -> list[str]:
    source = path.read_text()
    if not PHRASES.search(source):  # most files: parsing all of them takes half a minute
        return []
    return [
        f"{path.relative_to(ROOT)}:{line}: {match.group()!r}"
        for line, text in texts(source)
        if (match := PHRASES.search(text))
    ]


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    wrong = [line for path in [*MODULES, *OTHERS] for line in openings(path)]
    assert not wrong, "\n".join(wrong)


def test_phrases_that_need_reading_twice_are_not_used() -> None:
    wrong = [line for path in MODULES for line in phrases(path)]
    # This module names the phrases.
    others = [path for path in OTHERS if path != Path(__file__).resolve()]
    wrong += [line for path in others for line in phrases(path, docstrings_and_comments)]
    wrong += [line for path in TEXTS for line in phrases(path, text_outside_code)]
    assert not wrong, "\n".join(wrong)


def test_the_rules_find_what_they_forbid() -> None:
    tree = ast.parse('"""Of one query."""\nx = 1\n"""So many rows."""\n')
    assert [text for _, text in docstrings(tree)] == ["Of one query.", "So many rows."]
    assert OPENING.search('"""\n    Of one query."""')
    assert not OPENING.search('"""Offset of a query."""')
    assert PHRASES.search("# as so many rows")
    assert not PHRASES.search("# many rows")
    assert list(text_outside_code("a `b`\n```\nc\n```")) == [(1, "a ")]
