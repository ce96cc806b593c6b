"""docs/architecture.md and docs/contributing describe the code as it is: packages, walks, locks and threads."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from architecture.test_import_directions import LAYERS
from docs.markdown import ROOT
from docs.walks import Call, first_missing, steps_of, trace_key, trace_savepoint

PACKAGE = ROOT / "src" / "statebed"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
DECISIONS = ROOT / "docs" / "decisions"
LOCKS_AND_THREADS = ROOT / "docs" / "contributing" / "locks-and-threads.md"
LOCKS = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Barrier"}
THREADS = {"Thread", "Timer", "ThreadPoolExecutor"}
WALKS = ("One row", "One key", "One savepoint")


def rows_under(text: str, heading: str) -> list[list[str]]:
    """Return the cells of the table under a heading, without its head."""
    [section] = re.findall(rf"^#+ {heading}\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def packages() -> list[str]:
    folders = {path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("__init__.py")} - {"."}
    modules = {path.stem for path in PACKAGE.glob("*.py") if path.stem != "__init__"}
    return sorted(folders | modules)


def test_every_package_is_described() -> None:
    rows = rows_under(ARCHITECTURE.read_text(), "Layers")
    described = {name.strip("`"): contents for name, contents in rows}
    assert sorted(described) == packages()
    assert not [name for name, contents in described.items() if len(contents.split()) < 3]


def test_packages_are_listed_in_the_order_of_the_layers() -> None:
    named = [name.strip("`") for name, _ in rows_under(ARCHITECTURE.read_text(), "Layers")]
    layers = [name for name in named if "/" not in name]
    assert layers == sorted(layers, key=LAYERS.index, reverse=True)


@pytest.mark.parametrize("walk", WALKS)
def test_every_step_of_a_walk_exists(walk: str) -> None:
    steps = steps_of(ARCHITECTURE.read_text(), walk)
    assert len(steps) > 20
    assert [step for step in steps if step.function not in functions(PACKAGE / step.file)] == []


def test_a_key_passes_through_the_steps_of_its_walk(tmp_path: Path) -> None:
    check_passes(trace_key(tmp_path), "One key")


def test_a_savepoint_passes_through_the_steps_of_its_walk(tmp_path: Path) -> None:
    check_passes(trace_savepoint(tmp_path), "One savepoint")


def check_passes(calls: list[Call], walk: str) -> None:
    steps = steps_of(ARCHITECTURE.read_text(), walk)
    missing = first_missing(steps, calls)
    assert missing is None, f"{walk}: nothing passed through {missing} after the step before it"
    swapped = [*steps[:3], steps[-1], *steps[3:-1]]
    assert first_missing(swapped, calls) is not None, "the order of the steps matters"


def functions(path: Path) -> set[str]:
    """Return the qualified names of all functions in a module."""
    return set(_functions(ast.parse(path.read_text()).body, "")) if path.exists() else set()


def _functions(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef):
            yield prefix + node.name
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{prefix}{node.name}.")


# ---- decisions -----------------------------------------------------------------------------------------------


def test_every_decision_is_listed_under_its_title() -> None:
    pages = sorted(path for path in DECISIONS.glob("*.md") if path.name != "README.md")
    titles = [path.read_text().splitlines()[0].removeprefix("# ").split(": ", maxsplit=1) for path in pages]
    rows = [[f"[{number}]({path.name})", title] for path, (number, title) in zip(pages, titles, strict=True)]
    listed = re.findall(r"^\| (\[\d+\]\([^)]+\)) \| (.+) \|$", (DECISIONS / "README.md").read_text(), re.MULTILINE)
    assert [list(row) for row in listed] == rows


def test_files_that_decisions_name_exist() -> None:
    named = {
        (page.name, path)
        for page in DECISIONS.glob("*.md")
        for path in re.findall(r"`((?:tests/)?[a-z_]+(?:/[a-z_]+)*\.py)`", page.read_text())
    }
    assert len(named) > 4
    assert [place for place in named if not any((root / place[1]).exists() for root in (ROOT, PACKAGE))] == []


# ---- locks and threads ---------------------------------------------------------------------------------------


def test_every_lock_is_listed() -> None:
    rows = rows_under(LOCKS_AND_THREADS.read_text(), "Locks")
    listed = [(file.strip("`"), name.strip("`")) for file, name, *_ in rows]
    assert sorted(set(listed)) == sorted(set(concurrency(LOCKS)))


def test_every_thread_is_listed() -> None:
    rows = rows_under(LOCKS_AND_THREADS.read_text(), "Threads and pools")
    listed = [(file.strip("`"), name.strip("`")) for file, name, *_ in rows]
    assert sorted(set(listed)) == sorted(set(concurrency(THREADS)))


def test_every_file_lock_is_listed() -> None:
    listed = {file.strip("`") for file, *_ in rows_under(LOCKS_AND_THREADS.read_text(), "File locks")}
    using = {
        path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if "fcntl.flock" in path.read_text()
    }
    assert listed == using


def concurrency(kinds: set[str]) -> list[tuple[str, str]]:
    """Return file and name of everything of these kinds that the package creates."""
    return [
        (path.relative_to(PACKAGE).as_posix(), name)
        for path in sorted(PACKAGE.rglob("*.py"))
        for name in _created(_tree(path), kinds)
    ]


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _created(tree: ast.Module, kinds: set[str]) -> Iterator[str]:
    """Yield the name of each thread, or of what the object is assigned to."""
    nodes = list(ast.walk(tree))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    if not any(_kind(call) in kinds for call in calls):
        return
    targets = {
        id(node.value): node.targets[0] if isinstance(node, ast.Assign) else node.target
        for node in nodes
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
    }
    inside = {id(inner) for call in calls if _kind(call) in kinds for inner in ast.walk(call) if inner is not call}
    for call in calls:
        if _kind(call) in kinds and id(call) not in inside:
            named = {word.arg: word.value for word in call.keywords}
            name = named.get("thread_name_prefix", named.get("name"))
            if name is not None:
                yield _literal(name)
            elif id(call) in targets:
                yield ast.unparse(targets[id(call)]).removeprefix("self.")
            else:
                yield ast.unparse(named["target"])


def _kind(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _literal(node: ast.expr) -> str:
    """Return a text, or the constant beginning of an f-string."""
    first = node.values[0] if isinstance(node, ast.JoinedStr) else node
    assert isinstance(first, ast.Constant)
    return str(first.value)
