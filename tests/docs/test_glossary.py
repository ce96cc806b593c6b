"""The glossary in docs/index.md: each term is defined once, in one or two sentences, and used in the code."""

import re
from pathlib import Path

import pytest
from docs.markdown import ROOT

PAGE = ROOT / "docs" / "index.md"
SOURCES = ROOT / "src" / "statebed"
_ROW = re.compile(r"^\| (?P<term>[^|]+) \| (?P<meaning>[^|]+) \|$")
_MAX_SENTENCES = 2


def definitions() -> list[tuple[str, str]]:
    """Terms with their meanings, in the order of the page."""
    glossary = PAGE.read_text(encoding="utf-8").partition("\n## Glossary\n")[2]
    rows = [match for line in glossary.splitlines() if (match := _ROW.match(line))]
    return [(row["term"], row["meaning"]) for row in rows if row["term"] not in {"term", "---"}]


def used_in(text: str, term: str) -> bool:
    """Whether the code has the term as a word, in a name (`SortedRun`, `sorted_run`) or in the plural."""
    words = r"[\s_-]*".join(re.escape(word) for word in re.split(r"[\s-]", term))
    return re.search(words, text, flags=re.IGNORECASE) is not None


@pytest.fixture(scope="module")
def code() -> str:
    """All source text."""
    files = [path for path in sorted(SOURCES.rglob("*")) if path.suffix in {".py", ".proto", ".html", ".js"}]
    return "\n".join(path.read_text(encoding="utf-8") for path in files if not path.name.endswith("_pb2.py"))


def test_the_glossary_has_every_noun_that_is_not_plain_english() -> None:
    assert len(definitions()) >= 40


def test_a_term_is_defined_once() -> None:
    terms = [term.lower() for term, _ in definitions()]
    assert sorted(terms) == sorted(set(terms))


def test_a_definition_is_short() -> None:
    sentences = {term: len(re.findall(r"\.(?:\s|$)", meaning)) for term, meaning in definitions()}
    assert {term: count for term, count in sentences.items() if not 1 <= count <= _MAX_SENTENCES} == {}


def test_every_term_is_used_in_the_code(code: str) -> None:
    assert [term for term, _ in definitions() if not used_in(code, term)] == []


def test_a_term_that_the_code_lacks_is_noticed(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text("class SortedRun:\n    key_hash = 1  # clean-up\n", encoding="utf-8")
    text = source.read_text(encoding="utf-8")
    assert [term for term in ("sorted run", "key hash", "clean-up") if not used_in(text, term)] == []
    assert not used_in(text, "petition")
