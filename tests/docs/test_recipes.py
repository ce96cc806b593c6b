"""docs/contributing/recipes.md works: its changes apply to a copy of the tree, and its trials run there."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from docs.markdown import ROOT, blocks

PAGE = ROOT / "docs" / "contributing" / "recipes.md"
RECIPES = ("aggregate", "operator", "sink", "command", "store")
_FILE = re.compile(r"^`([^`]+)`( \(new\))?:$")
_LISTED = re.compile(r"^\| (`[^|]+`) \|", re.MULTILINE)


@dataclass(frozen=True)
class Recipe:
    """One section of the page."""

    changes: dict[str, str]
    """Blocks by file."""
    added: frozenset[str]
    """Files that are new."""
    listed: frozenset[str]
    """Files of its table."""
    trial: str


def recipe(name: str) -> Recipe:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    headings = [number for number, line in enumerate(lines, start=1) if line.startswith("## ")]
    [start] = [number for number in headings if lines[number - 1] in {f"## Add a {name}", f"## Add an {name}"}]
    end = next((number for number in headings if number > start), len(lines) + 1)
    changes, added, trial = {}, set(), ""
    for block in blocks(PAGE):
        if start < block.line < end:
            label = _FILE.match(lines[block.line - 4])
            if label is None:
                assert lines[block.line - 4] == "Trial:", block.where
                trial = block.text
            else:
                changes[label[1]] = block.text
                added |= {label[1]} if label[2] else set()
    section = "\n".join(lines[start:end])
    listed = {path for cell in _LISTED.findall(section) for path in re.findall(r"`([^`]+)`", cell)}
    return Recipe(changes, frozenset(added), frozenset(listed), trial)


def applied(text: str, change: str, *, where: str) -> str:
    """Return the text with all places of a `diff` block changed."""
    for place in re.split(r"^@@\n", change, flags=re.MULTILINE):
        lines = [line or " " for line in place.splitlines()]
        before = "".join(f"{line[1:]}\n" for line in lines if line[0] in " -")
        after = "".join(f"{line[1:]}\n" for line in lines if line[0] in " +")
        assert text.count(before) == 1, f"{where} has no such place, or several:\n{before}"
        text = text.replace(before, after)
    return text


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_works_in_a_copy_of_the_tree(name: str, tmp_path: Path) -> None:
    wanted = recipe(name)
    shutil.copytree(ROOT / "src", tmp_path / "src")  # with compiled modules
    for path, change in wanted.changes.items():
        source = ROOT / path
        if path in wanted.added:
            assert not source.exists(), f"{path} exists: choose another example"
            content = change if change.endswith("\n") else f"{change}\n"
        else:
            content = applied(source.read_text(encoding="utf-8"), change, where=path)
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content, encoding="utf-8")
        compile(content, path, "exec")
    done = subprocess.run(
        [sys.executable, "-c", wanted.trial],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_lists_every_file_that_it_changes(name: str) -> None:
    wanted = recipe(name)
    assert set(wanted.changes) <= wanted.listed
    missing = [path for path in wanted.listed - wanted.added if not (ROOT / path).exists()]
    assert [path for path in missing if not re.fullmatch(r"tests/unit/\w+/test_\w+\.py", path)] == []
