"""The page of names of prior systems: every name that it gives for here exists."""

import importlib
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "names-of-prior-systems.md"


def rows() -> list[tuple[str, str]]:
    """Return the two names in each row of the tables: the other system's and ours."""
    found = [
        re.split(r"(?<!\\)\|", line)[1:3] for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:1] == "|"
    ]
    return [(there.strip(), here.strip()) for there, here in found if there.strip() not in {"there", "---"}]


NAMES = sorted({name for _, here in rows() for name in re.findall(r"`([\w.]+)`", here)})


def test_every_row_names_something_of_ours() -> None:
    assert len(rows()) > 50
    assert [there for there, here in rows() if not re.search(r"`statebed[\w.]*`", here)] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_ours_exists(name: str) -> None:
    parts = name.split(".")
    assert parts[0] == "statebed"
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return
    raise AssertionError(name)
