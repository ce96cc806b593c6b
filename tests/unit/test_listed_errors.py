"""Errors for invalid input are on the reviewed page of error messages, or have a reason not to be.

The texts are read from the source. An error is on the page if the longest constant part of its text is. Those that are
not are in unlisted_errors.txt, under the reason; the file only shrinks.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from error_messages import PAGE

from statebed import errors

SOURCE = Path(errors.__file__).parent
UNLISTED = Path(__file__).with_name("unlisted_errors.txt")
MOST = 236
"""Number of errors in that file at most. Lower it when one of them is listed."""
REASONS = {
    "needs a damaged file or state",
    "needs a server",
    "needs another environment",
    "needs state of another program",
    "needs a running job",
    "internal misuse",
    "not yet listed",
}
SHORTEST = 5
"""Characters of a constant part that says which error it is."""
INPUT = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.InputError)}


def parts(text: ast.expr) -> Iterator[str]:
    """Yield the constant parts of a text."""
    match text:
        case ast.Constant(value=str(constant)):
            yield constant
        case ast.JoinedStr(values=values):
            for value in values:
                yield from parts(value)
        case ast.BinOp(left=left, right=right):
            yield from parts(left)
            yield from parts(right)
        case ast.IfExp(body=body, orelse=orelse):
            yield from parts(body)
            yield from parts(orelse)


def input_errors() -> Iterator[str]:
    """Yield the errors for invalid input that the source creates, as file and longest constant part of the text."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args and ast.unparse(node.func).rpartition(".")[2] in INPUT:
                longest = max((part.strip() for part in parts(node.args[0])), key=len, default="")
                if len(longest) >= SHORTEST:
                    yield f"{path.relative_to(SOURCE).as_posix()}: {' '.join(longest.split())}"


def unlisted() -> dict[str, list[str]]:
    """Return the errors in the file by the reason above them."""
    by_reason: dict[str, list[str]] = {}
    for line in UNLISTED.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            by_reason[line.removeprefix("# ")] = reasoned = []
        elif line:
            reasoned.append(line)
    return by_reason


def missing() -> list[str]:
    """Return the errors that are not on the page."""
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    return sorted({error for error in input_errors() if error.partition(": ")[2] not in page})


def test_every_error_for_invalid_input_is_on_the_page_or_has_a_reason_not_to_be() -> None:
    reasoned = {error for listed in unlisted().values() for error in listed}
    new = [error for error in missing() if error not in reasoned]
    assert new == [], "add a mistake that raises it to tests/mistakes.py, and review its text"


def test_an_error_that_is_on_the_page_is_not_in_the_file() -> None:
    absent = missing()
    stale = [error for listed in unlisted().values() for error in listed if error not in absent]
    assert stale == [], f"remove these from {UNLISTED.name}, and lower MOST"


def test_the_file_has_known_reasons_and_only_shrinks() -> None:
    assert set(unlisted()) <= REASONS
    assert sum(map(len, unlisted().values())) == MOST


def test_parts_of_a_text_are_found() -> None:
    text = ast.parse("'a' + (f'b {x} c' if y else 'd')", mode="eval").body
    assert re.sub(r"\s", "", "".join(parts(text))) == "abcd"
