"""Names that a reader can tell apart: one class name for one thing, module names that are nouns, no near-twins."""

import re
from collections import defaultdict
from collections.abc import Callable, Collection
from pathlib import Path

from architecture.source_facts import facts_of

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "statebed"
MODULES = sorted(path for path in SOURCE.rglob("*.py") if not path.name.endswith("_pb2.py"))
PROGRAMS = sorted(path for folder in ("bench", "scripts", "examples") for path in (ROOT / folder).rglob("*.py"))
NOUNS_IN_ING = {"graph_drawing", "grouping", "routing", "testing", "widening"}
"""Module names that end in -ing and are nouns of the field."""
CLASS = re.compile(r"^class (\w+)", re.MULTILINE)


def test_class_names_are_unique() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in MODULES:
        for name in CLASS.findall(path.read_text()):
            places[name].append(str(path.relative_to(SOURCE)))
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


VAGUE = {"one", "found", "some", "given", "told", "asked", "made"}
"""Names that say nothing about what they hold."""
PUBLISHED = {("src/statebed/cli/doctor.py", "found")}
"""Fields with such names that users read: a key in the output of `statebed doctor --json`."""
LIMIT = re.compile(r"_?(MOST|LEAST|LARGEST|SMALLEST)_|_?(most|least)$")


def test_limits_are_called_max_and_min() -> None:
    assert names_that(LIMIT.match, [*MODULES, *PROGRAMS]) == []


def test_names_say_what_they_hold() -> None:
    assert names_that(VAGUE.__contains__, [*MODULES, *PROGRAMS], allowed=PUBLISHED) == []


def names_that(
    are_wrong: Callable[[str], object], paths: list[Path], *, allowed: Collection[tuple[str, str]] = ()
) -> list[str]:
    return [
        f"{relative}:{line}: {name}"
        for path in paths
        for relative in [str(path.relative_to(ROOT))]
        for line, name in sorted(facts_of(path).bound)
        if are_wrong(name) and (relative, name) not in allowed
    ]
