"""The reference pages name everything that the code offers, and links lead somewhere."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from docs.errors_page import PAGE, page
from docs.markdown import ROOT, anchors, documents, links, name_of

import statebed as sb
from statebed import checkpoint, storage
from statebed.cli.app import app

REFERENCE = ROOT / "docs" / "reference"


def test_the_page_of_errors_is_what_the_code_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python tests/docs/errors_page.py"


def test_the_api_page_names_every_public_name() -> None:
    text = (REFERENCE / "api.md").read_text(encoding="utf-8")
    assert not [name for name in sb.__all__ if f"`sb.{name}" not in text]


@pytest.mark.parametrize("module", [checkpoint, storage])
def test_the_api_page_names_what_the_lower_layers_offer(module: object) -> None:
    text = (REFERENCE / "api.md").read_text(encoding="utf-8")
    offered: list[str] = module.__all__  # type: ignore[attr-defined]  # both modules have it
    assert not [name for name in offered if f"`{name}" not in text and f"`sb.{name}" not in text]


@pytest.mark.parametrize("options", [sb.RunOptions, sb.Retention, sb.Origin])
def test_the_configuration_page_names_every_field_of_the_options(options: type) -> None:
    text = (REFERENCE / "configuration.md").read_text(encoding="utf-8")
    assert not [field.name for field in dataclasses.fields(options) if f"`{field.name}" not in text]


def test_the_cli_page_names_every_command_and_option() -> None:
    text = (REFERENCE / "cli.md").read_text(encoding="utf-8")
    group: Any = typer.main.get_command(app)
    assert group.commands
    for name, command in group.commands.items():
        assert f"## statebed {name}" in text
        flags = [flag for parameter in command.params for flag in parameter.opts if flag.startswith("--")]
        assert not [flag for flag in flags if flag != "--help" and f"`{flag}" not in text]


@pytest.mark.parametrize("document", documents(), ids=name_of)
def test_links_inside_the_repository_lead_somewhere(document: Path) -> None:
    broken = []
    for line, target in links(document):
        if "://" in target or target.startswith("mailto:"):
            continue
        file, _, anchor = target.partition("#")
        there = (document.parent / file).resolve() if file else document
        if not there.exists() or (anchor and anchor not in anchors(there)):
            broken.append(f"{name_of(document)}:{line}: {target}")
    assert not broken


def test_every_page_of_the_docs_can_be_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        document = waiting.pop()
        if document in seen or document.suffix != ".md":
            continue
        seen.add(document)
        targets = (target.partition("#")[0] for _, target in links(document) if "://" not in target)
        waiting += [(document.parent / target).resolve() for target in targets if target]
    assert not sorted(name_of(document) for document in documents() if document not in seen)


def test_the_tests_that_a_promise_names_carry_its_number() -> None:
    architecture = ROOT / "docs" / "architecture.md"
    rows = [line for line in architecture.read_text(encoding="utf-8").splitlines() if line.startswith("| **P")]
    assert len(rows) == 9
    for number, row in enumerate(rows, start=1):
        assert row.startswith(f"| **P{number}**")
        for target in re.findall(r"\]\((\.\./tests/[^)]+)\)", row):
            test = (architecture.parent / target).resolve()
            assert re.search(rf"def test_(p\d_)*p{number}_", test.read_text(encoding="utf-8")), f"P{number}: {target}"
