"""Names that a reader can tell apart: one class name for one thing, module names that are nouns, no near-twins."""

import ast
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "statebed"
MODULES = sorted(path for path in SOURCE.rglob("*.py") if not path.name.endswith("_pb2.py"))
NOUNS_IN_ING = {"graph_drawing", "grouping", "routing", "testing", "widening"}
"""Module names that end in -ing and are nouns of the field."""


def test_class_names_are_unique() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in MODULES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(SOURCE)))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_modules_are_not_called_by_gerunds() -> None:
    gerunds = {path.stem for path in MODULES if path.stem.endswith("ing")}
    assert gerunds <= NOUNS_IN_ING


def test_no_two_modules_of_a_package_differ_by_a_plural_only() -> None:
    twins = [
        f"{path.relative_to(SOURCE)} and {path.stem}s.py"
        for path in MODULES
        if path.with_name(f"{path.stem}s.py").exists() or path.with_name(f"{path.stem}s").is_dir()
    ]
    assert twins == []


VAGUE = {"one", "found", "some", "given", "told", "asked"}
"""Names that say nothing about what they hold."""
BEING_CHANGED = ("aggregates/", "queries/", "sinks/")
"""Packages whose loop variables have not been renamed yet."""
MOST_VAGUE_LOCALS = 850
"""Number of other locals and parameters with such names, in the whole package. It may only become smaller."""


def loop_variables(tree: ast.Module) -> set[tuple[int, str]]:
    """Return line and name of the variables of comprehensions and the parameters of lambdas."""
    names: set[tuple[int, str]] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.comprehension):
            names |= {(part.lineno, part.id) for part in ast.walk(node.target) if isinstance(part, ast.Name)}
        elif isinstance(node, ast.Lambda):
            names |= {(argument.lineno, argument.arg) for argument in node.args.args}
    return names


def test_loop_variables_say_what_they_hold() -> None:
    vague = [
        f"{module}:{line}: {name}"
        for path in MODULES
        if not (module := str(path.relative_to(SOURCE))).startswith(BEING_CHANGED)
        for line, name in sorted(loop_variables(ast.parse(path.read_text())))
        if name in VAGUE
    ]
    assert vague == []


def test_locals_with_vague_names_become_fewer() -> None:
    vague = 0
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                vague += node.id in VAGUE
            elif isinstance(node, ast.arg):
                vague += node.arg in VAGUE
    assert vague <= MOST_VAGUE_LOCALS
