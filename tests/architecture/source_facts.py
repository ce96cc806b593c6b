"""Facts of a source file that several rules need, collected in one walk: parsing takes longer than the checks."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class SourceFacts:
    """Facts of one file, each with its line."""

    imports: list[tuple[int, str]] = field(default_factory=list)
    """Full names of everything that is imported, at the top or inside functions."""
    bound: set[tuple[int, str]] = field(default_factory=set)
    """Names of locals, loop variables, parameters and functions, and of fields of classes."""
    texts: list[tuple[int, str]] = field(default_factory=list)
    """Strings that are not documentation."""


@cache
def facts_of(path: Path) -> SourceFacts:
    facts = SourceFacts()
    documentation: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text())):  # an expression comes before the string that it consists of
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Store):
                facts.bound.add((node.lineno, node.id))
        elif isinstance(node, ast.arg):
            facts.bound.add((node.lineno, node.arg))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            facts.bound.add((node.lineno, node.name))
        elif isinstance(node, ast.Expr):
            documentation.add(id(node.value))
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str) and id(node) not in documentation:
                facts.texts.append((node.lineno, node.value))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            facts.imports.extend(_imported(node, path))
    return facts


def _imported(node: ast.Import | ast.ImportFrom, path: Path) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.Import):
        yield from ((node.lineno, alias.name) for alias in node.names)
        return
    assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
    for alias in node.names:
        yield node.lineno, f"{node.module}.{alias.name}" if node.module == "statebed" else str(node.module)
