"""Unit tests lie where their subject lies: tests/unit has the folders of src/statebed."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {path.parent.name for path in (ROOT / "src" / "statebed").glob("*/__init__.py")}
UNIT = ROOT / "tests" / "unit"
OUTSIDE = {"bench", "scripts"}
"""Folders of tests for programs that lie beside src and are not part of the package."""
BY_FIXTURES = {"cli", "ui"}
"""Packages that most of their tests call through a fixture of the folder's conftest: the command and the web server."""


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield all statements, without the expressions in them, which are most of a tree."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            waiting += getattr(node, part, ())


def imported_names(path: Path) -> set[str]:
    """Return the full names of everything that a test imports."""
    names: set[str] = set()
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def test_folders_of_unit_tests_are_packages_of_the_source() -> None:
    folders = {path.name for path in UNIT.iterdir() if any(path.glob("*.py"))}
    assert folders - PACKAGES == OUTSIDE


def test_unit_tests_import_the_package_of_their_folder() -> None:
    misplaced = []
    for path in sorted(UNIT.glob("*/test_*.py")):
        folder = path.parent.name
        names = imported_names(path)
        of_product = {name for name in names if name.startswith("statebed.") and name.split(".")[1] in PACKAGES}
        of_folder = {name for name in names if name.startswith((f"statebed.{folder}", f"unit.{folder}."))}
        # `import statebed as sb` reaches every package by its public names.
        if of_product and not of_folder and "statebed" not in names and folder not in OUTSIDE | BY_FIXTURES:
            misplaced.append(f"{path.relative_to(ROOT)} imports {', '.join(sorted(of_product))}")
    assert misplaced == []
