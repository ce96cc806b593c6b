"""A Java process that the documents of a test run share, so that each of them need not start its own.

A document still runs in a separate Python process. Its Spark inside the shared Java is that of the document before if
both have the same settings (`run_document.py`), but its session is new. Both processes use the same working folder, as
they do for a user, so relative paths mean the same to both. The folder is empty when a document begins. Java is
replaced after a document that failed, because its state is unknown.
"""

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark import java_gateway

STOPPED_WITHIN_SECONDS = 60
launch: Any = java_gateway.launch_gateway
"""PySpark's function has no types."""


class SharedJava:
    """Starts Java when the first document needs it."""

    def __init__(self, folder: Path, log: Path) -> None:
        self.folder = folder
        self.log = log
        self._gateway: Any = None

    def variables(self) -> Mapping[str, str]:
        """Return the environment variables by which PySpark finds the process."""
        if self._gateway is None:
            with pytest.MonkeyPatch.context() as patch, self.log.open("ab") as log:
                patch.setenv("PYSPARK_PYTHON", sys.executable)  # Java itself starts a Python that lists data sources
                self._gateway = launch(popen_kwargs={"cwd": self.folder, "stdout": log, "stderr": log})
        parameters = self._gateway.java_parameters
        return {
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_GATEWAY_PORT": str(parameters.port),
            "PYSPARK_GATEWAY_SECRET": parameters.auth_token,
        }

    def empty_folder(self) -> None:
        for path in self.folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def tail(self, characters: int = 4000) -> str:
        """Return the end of what Java wrote."""
        return self.log.read_text(errors="replace")[-characters:] if self.log.exists() else ""

    def stop(self) -> None:
        """End Java; it ends by itself when its input is closed."""
        if self._gateway is not None:
            gateway, self._gateway = self._gateway, None
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait(STOPPED_WITHIN_SECONDS)
