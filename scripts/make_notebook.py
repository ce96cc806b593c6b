"""Makes docs/notebook.ipynb by running it: `scripts/with-java .venv/bin/python scripts/make_notebook.py [FILE]`.

The cells stand in notebook.cells, their outputs are what a fresh kernel gives. Paths of this machine are replaced, and
what Spark writes to stderr while it starts is left out.
"""

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FORMAT: Any = nbformat  # it has no types

FILE = Path(__file__).resolve().parents[1] / "docs" / "notebook.ipynb"
CELLS = Path(__file__).resolve().parent / "notebook.cells"
SHOWN_FOLDER = "/home/you/rides"
SECONDS = 300

_CELL = re.compile(r"^# %%( \[markdown\])?\n", re.MULTILINE)


def cells() -> Iterator[Any]:
    """Yield the cells of the file beside this one: `# %%` begins one with code, `# %% [markdown]` one with text."""
    _, *parts = _CELL.split(CELLS.read_text(encoding="utf-8"))
    for number, (kind, text) in enumerate(zip(parts[::2], parts[1::2], strict=True)):
        new_cell = FORMAT.v4.new_markdown_cell if kind else FORMAT.v4.new_code_cell
        yield new_cell(text.strip(), id=f"cell-{number}")


def executed(folder: Path) -> Any:
    """The notebook with the outputs of a kernel that runs in `folder`."""
    notebook = FORMAT.v4.new_notebook(
        cells=list(cells()),
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
    )
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    os.environ["TZ"] = "UTC"
    client = NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(folder)}})
    client.execute()
    for cell in notebook.cells:
        cell.pop("execution_count", None)
        if cell.cell_type == "code":
            cell["execution_count"] = None
            cell["metadata"] = {}
            cell["outputs"] = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                if output.output_type == "execute_result":
                    output["execution_count"] = None
    return notebook


def main() -> None:
    """Write the notebook to the file that is given, or to its place in the documents."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else FILE
    with tempfile.TemporaryDirectory(prefix="statebed-notebook-") as folder:
        text = FORMAT.writes(executed(Path(folder))).replace(str(Path(folder).resolve()), SHOWN_FOLDER)
    target.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
