"""Workers of statebed's daemon are forked with everything loaded that a task needs."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import gc
import sys
from collections.abc import Iterator

import pyarrow as pa

from statebed.spark.session import default_session


def loaded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    collected = {id(entry) for entry in gc.get_objects()}  # without what the daemon had loaded, and frozen
    known = all(id(sys.modules[name]) not in collected for name in ("statebed.operators", "pyspark.worker", "pandas"))
    yield from (pa.RecordBatch.from_pydict({"known": [known]}) for batch in batches if batch.num_rows)


session = default_session("daemon")
print(session.range(0, 2, 1, 2).mapInArrow(loaded, "known boolean").collect())
"""


def test_a_worker_has_loaded_its_modules_before_it_is_forked(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert "[Row(known=True), Row(known=True)]" in done.stdout, done.stderr
