"""Every fenced block of README and docs is run, or says why it is not.

- python: run top to bottom in a process of its own and an empty folder;
- bash, console: `statebed ...` and `.venv/bin/...` are run in the same folder, between the python blocks; `make TARGET`
  must be a target of the Makefile; anything else needs a marker;
- text: shows output or a folder; with the marker `<!-- output -->` it must be what the block before it printed.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docs.loaded_python import LoadedPython
from docs.markdown import ROOT, Block, blocks, documents, name_of
from docs.shared_java import SharedJava

from docs import loaded_python

SHELLS = {"bash", "console"}
RUN = {"python", *SHELLS}
SHOWN = {"text"}
HELD_BY_OTHER_TESTS = {
    "docs/contributing/recipes.md": "tests/docs/test_recipes.py",
    "docs/format.md": "tests/unit/format/test_specification.py",
    "docs/howto/kafka.md": "tests/kafka/test_kafka_page.py",
}
"""Documents with blocks in other languages, or that need a server, and the test that runs them or compares them."""
MAX_NOT_RUN = 9
"""Blocks that cannot run here; each gives its reason. A cluster is had by tests/spark/test_packed_cluster.py."""
TIMEOUT_SECONDS = 280
RUNNER = Path(__file__).with_name("run_document.py")
BIN = Path(sys.executable).parent
SHORT_LIVED_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Halves the processor time of a Spark that lives for seconds: the compiler for long runs never pays off."""


def targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z0-9-]+):", makefile, flags=re.MULTILINE))


def commands(block: Block) -> list[list[str]]:
    """The commands of a block; in a console block those that follow a '$ '."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.language == "console":
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    split = [shlex.split(line, comments=True) for line in lines]
    return [words for words in split if words]


def is_run(words: list[str]) -> bool:
    return words[0] == "statebed" or words[0].startswith(".venv/bin/")


def is_make(words: list[str]) -> bool:
    return words[0] == "make"


def steps(document: Path) -> list[dict[str, Any]]:
    """Return the steps of the runner for one document."""
    found: list[dict[str, Any]] = []
    for block in blocks(document):
        if block.is_output:
            assert found, f"{block.where}: there is nothing whose output this could be"
            found[-1]["expected"] = block.text
        elif block.not_run or block.language not in RUN:
            continue
        elif block.language == "python":
            found.append(_step(block, kind="python", source=block.text))
        else:
            found += [
                _step(block, kind="command", arguments=[str(BIN / Path(words[0]).name), *words[1:]])
                for words in commands(block)
                if is_run(words)
            ]
    return found


def _step(block: Block, **more: Any) -> dict[str, Any]:
    return {"document": block.document, "line": block.line, "where": block.where, "expected": None, **more}


RUNNABLE = [path for path in documents() if name_of(path) not in HELD_BY_OTHER_TESTS and steps(path)]


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedJava]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", os.environ.get("JAVA_TOOL_OPTIONS", SHORT_LIVED_JAVA))
        shared = SharedJava(tmp_path_factory.mktemp("page"), tmp_path_factory.mktemp("java") / "log.txt")
        yield shared
        shared.stop()


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedPython]:
    loaded = LoadedPython(tmp_path_factory.mktemp("python") / "socket")
    yield loaded
    loaded.stop()


@pytest.mark.parametrize("document", RUNNABLE, ids=name_of)
def test_the_blocks_of_a_document_run_from_top_to_bottom(
    document: Path, java: SharedJava, python: LoadedPython
) -> None:
    java.empty_folder()
    passed = False
    try:
        done = loaded_python.run(
            [str(RUNNER)],
            given=json.dumps(steps(document)),
            folder=java.folder,
            environment={**os.environ, **java.variables(), **python.variables()},
            timeout=TIMEOUT_SECONDS,
        )
        passed = done.returncode == 0
        assert passed, f"{name_of(document)}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}\nJava:\n{java.tail()}"
    finally:
        if not passed:
            java.stop()


@pytest.mark.parametrize("document", documents(), ids=name_of)
def test_every_block_has_a_language_that_is_run_or_shown(document: Path) -> None:
    if name_of(document) in HELD_BY_OTHER_TESTS:
        holder = ROOT / HELD_BY_OTHER_TESTS[name_of(document)]
        assert document.name in holder.read_text(encoding="utf-8")
        return
    unknown = [f"{b.where}: {b.language or 'none'}" for b in blocks(document) if b.language not in RUN | SHOWN]
    assert not unknown


@pytest.mark.parametrize("document", documents(), ids=name_of)
def test_every_command_is_run_or_a_make_target_or_says_why_not(document: Path) -> None:
    shells = [block for block in blocks(document) if block.language in SHELLS and not block.not_run]
    unknown = [
        f"{block.where}: {' '.join(words)}"
        for block in shells
        for words in commands(block)
        if not is_run(words) and not (is_make(words) and set(_named(words)) <= targets())
    ]
    assert not unknown


def _named(words: list[str]) -> list[str]:
    """The targets of a make command; `make` alone and VARIABLE=value name none."""
    return [word for word in words[1:] if "=" not in word]


def test_make_targets_that_prose_names_exist() -> None:
    named = {
        (name_of(document), target)
        for document in documents()
        for target in re.findall(r"`make ([a-z0-9-]+)`", document.read_text(encoding="utf-8"))
    }
    assert named
    assert not {(document, target) for document, target in named if target not in targets()}


def test_the_contributing_page_names_every_part_of_the_suite() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    parts = [target for target in targets() if target.startswith("test-")]
    assert parts
    assert not [target for target in parts if f"`make {target}`" not in text]


def test_few_blocks_are_not_run_and_none_of_them_is_only_shown_text() -> None:
    marked = [block for document in documents() for block in blocks(document) if block.not_run]
    assert len(marked) <= MAX_NOT_RUN, [block.where for block in marked]
    assert all(block.language in RUN for block in marked)


def test_a_block_that_fails_or_prints_something_else_is_noticed(tmp_path: Path) -> None:
    def run(text: str) -> subprocess.CompletedProcess[str]:
        place = {"document": "page.md", "line": 2, "where": "page.md:2"}
        return subprocess.run(
            [sys.executable, str(RUNNER)],
            cwd=tmp_path,
            input=json.dumps([{**place, "kind": "python", "source": text, "expected": "right\n"}]),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert run("print('right')").returncode == 0
    assert run("print('wrong')").returncode == 1
    failed = run("import sys\nraise ValueError('broken')")
    assert failed.returncode == 1
    assert 'File "page.md", line 3' in failed.stderr
    assert run("import sys\nsys.exit(0)").returncode == 1
