"""Rules of the house that a reader would otherwise have to check by eye."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from architecture.source_facts import facts_of

ROOT = Path(__file__).resolve().parents[2]
MAX_LINES = 600
"""About 400 is the advice; most modules beyond this limit hold more than one idea."""
LONG_MODULES = {
    "src/statebed/state/keyed/view.py": "one class: reads, writes and checkpoints share its lock, clock and last batch",
}
"""Longer modules that hold one idea, with the reason why no part of them is an idea of its own."""
MODULES = sorted(
    path
    for folder in ("src", "tests", "scripts", "bench", "examples")
    for path in (ROOT / folder).rglob("*.py")
    if not path.name.endswith("_pb2.py")
)
NAMES_MODULE = ROOT / "src" / "statebed" / "format" / "names.py"
OBJECT_NAME = re.compile(
    r"checkpoint\.metadata|published-|savepoint-|^operator-|\.answer$"
    r"|(^|/)(checkpoints|compactions|requests)/"
)


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_modules_are_short_enough_to_read() -> None:
    lengths = {relative(path): len(path.read_text().splitlines()) for path in MODULES}
    assert {name for name, lines in lengths.items() if lines > MAX_LINES} == LONG_MODULES.keys()


def test_only_the_module_of_names_formats_names_of_objects() -> None:
    sources = [path for path in MODULES if path.is_relative_to(ROOT / "src") and path != NAMES_MODULE]
    formatted = [line for path in sources for line in object_names_in(path)]
    assert not formatted, "\n".join(formatted)


def object_names_in(path: Path) -> list[str]:
    return [
        f"{relative(path)}:{line}: {text!r}"
        for line, text in facts_of(path).texts
        # Sentences for people may show an example of a name.
        if not re.search(r"\s", text) and OBJECT_NAME.search(text)
    ]


def tracked_files() -> list[Path]:
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("no git checkout")
    listed = subprocess.run([git, "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, timeout=60)
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name]


def test_no_tracked_file_names_a_path_of_this_machine() -> None:
    # Folders that every machine has say nothing about this one.
    everywhere = {Path("/"), Path("/tmp"), Path("/home"), Path("/usr"), Path("/opt"), Path("/var")}
    folders = {ROOT, ROOT.parent, Path.home()} - everywhere
    pattern = re.compile("|".join(rf"(?<![\w.-]){re.escape(str(folder))}(?![\w.-])" for folder in sorted(folders)))
    named = [
        f"{relative(path)}: {match.group()}"
        for path in tracked_files()
        if path.is_file()
        and any(bytes(folder) in (data := path.read_bytes()) for folder in folders)
        and (match := pattern.search(data.decode(errors="replace")))
    ]
    assert not named, "\n".join(named)


def test_every_mutant_applies() -> None:
    git = shutil.which("git")
    if git is None:
        pytest.skip("no git")
    # A patch that no longer applies proves nothing; `make mutants` runs the tests that must find them.
    broken = [
        path.name
        for path in sorted((ROOT / "tests" / "mutants").glob("*.patch"))
        if subprocess.run([git, "apply", "--check", path], cwd=ROOT, timeout=60, check=False).returncode
    ]
    assert broken == []
