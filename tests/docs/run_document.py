"""Runs the blocks of one document from top to bottom, in one namespace and in the present folder.

Started in a process of its own by `test_code_blocks.py`, with a JSON list of steps on stdin. A step that fails ends the
process; the traceback names the document's own line. Where `loaded_python.py` serves, `statebed` is run by it.
"""

import contextlib
import io
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

COMMAND_TIMEOUT_SECONDS = 120
LOADED_PYTHON = "LOADED_PYTHON"
"""Environment variable with the address of the process that runs `statebed`, if there is one."""


def main() -> int:
    """Run the steps; 1 if one failed or printed something else than its document says."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    try:
        _connect_to_shared_java()
        for step in json.load(sys.stdin):
            printed = _python(step, namespace) if step["kind"] == "python" else _command(step)
            sys.stdout.write(printed)
            if step["expected"] is not None and printed.strip() != step["expected"].strip():
                sys.stderr.write(f"{step['where']} prints:\n{printed}\nbut the document says:\n{step['expected']}\n")
                return 1
    except BaseException:  # noqa: BLE001 - a SystemExit in a block is a failure too
        traceback.print_exc()
        return 1
    finally:
        _stop_spark()
    return 0


def _python(step: dict[str, Any], namespace: dict[str, Any]) -> str:
    # Blank lines in front make line numbers in tracebacks those of the document.
    source = "\n" * (step["line"] - 1) + step["source"]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, step["document"], "exec"), namespace)  # noqa: S102 - that is what this is for
    return printed.getvalue()


def _command(step: dict[str, Any]) -> str:
    arguments = step["arguments"]
    sys.stderr.write(f"$ {' '.join(arguments)}\n")
    if LOADED_PYTHON in os.environ and Path(arguments[0]).name == "statebed":
        from docs import loaded_python  # noqa: PLC0415 - only there is it on the path

        done = loaded_python.run(arguments, folder=Path.cwd(), environment=os.environ, timeout=COMMAND_TIMEOUT_SECONDS)
        sys.stderr.write(done.stderr)
    else:
        done = subprocess.run(
            arguments, stdout=subprocess.PIPE, text=True, timeout=COMMAND_TIMEOUT_SECONDS, check=False
        )
    if done.returncode:
        raise SystemExit(f"{step['where']}: exit code {done.returncode}")
    return done.stdout


def _connect_to_shared_java() -> None:
    """Use the Java of `shared_java.py`, if there is one, here but not in the processes that the document starts."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        from pyspark import SparkContext  # noqa: PLC0415 - only where it is used

        SparkContext._ensure_initialized()
        # Java says which functions of earlier documents it has dropped. Numbers of our own keep ours from being meant.
        gateway: Any = SparkContext._gateway
        gateway.gateway_property.pool.next_id = os.getpid() * 1_000_000
        del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]


def _stop_spark() -> None:
    if "pyspark" in sys.modules:
        from pyspark import SparkContext  # noqa: PLC0415 - only where a document used it

        context = SparkContext._active_spark_context
        if context is not None:
            context.stop()


if __name__ == "__main__":
    sys.exit(main())
