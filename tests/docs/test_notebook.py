"""The executed notebook of the documents: running it again gives outputs of the same shape."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from docs.markdown import ROOT

NOTEBOOK = ROOT / "docs" / "notebook.ipynb"
SCRIPT = ROOT / "scripts" / "make_notebook.py"
Shape = list[tuple[str, str, list[list[str]]]]


def shape(path: Path) -> Shape:
    """Return the kind and source of each cell, and the forms of each output."""
    cells: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [
        (
            cell["cell_type"],
            "".join(cell["source"]),
            [[one["output_type"], *sorted(one.get("data", {}))] for one in cell.get("outputs", [])],
        )
        for cell in cells
    ]


def test_the_notebook_runs_and_shows_what_it_shows_in_the_documents(tmp_path: Path) -> None:
    made = tmp_path / "again.ipynb"
    environment = os.environ | {"JUPYTER_RUNTIME_DIR": str(tmp_path), "IPYTHONDIR": str(tmp_path)}
    command = [sys.executable, str(SCRIPT), str(made)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert shape(made) == shape(NOTEBOOK), "run: scripts/with-java .venv/bin/python scripts/make_notebook.py"


def test_no_output_of_the_notebook_is_an_error_or_names_a_folder_of_the_machine_that_ran_it() -> None:
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert "/tmp/" not in text
    outputs = [one for _, _, some in shape(NOTEBOOK) for one in some]
    assert outputs
    assert "error" not in {kind for kind, *_ in outputs}
