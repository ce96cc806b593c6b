"""Runs the blocks of one document from top to bottom, in one namespace and in the present folder.

Started in a process of its own by `test_code_blocks.py`, with a JSON list of steps on stdin. A step that fails ends the
process; the traceback names the document's own line. Where `loaded_python.py` serves, `statebed` is run by it, in the
shared Java if the document itself has not used Spark yet.
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
GATEWAY_PORT, GATEWAY_SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"
SETTINGS = "docs.spark.settings"
"""Property of the shared Java: the settings of its Spark."""
OF_ONE_DOCUMENT = "spark.app."
"""Prefix of settings that differ between documents and have no effect: the name of the application, its start."""


def main() -> int:
    """Run the steps; 1 if one failed or printed something else than its document says."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    shares_java = GATEWAY_PORT in os.environ
    try:
        java = connect_to_shared_java()
        for step in json.load(sys.stdin):
            printed = _python(step, namespace) if step["kind"] == "python" else _command(step, java)
            sys.stdout.write(printed)
            if step["expected"] is not None and printed.strip() != step["expected"].strip():
                sys.stderr.write(f"{step['where']} prints:\n{printed}\nbut the document says:\n{step['expected']}\n")
                return 1
    except BaseException:  # noqa: BLE001 - a SystemExit in a block is a failure too
        traceback.print_exc()
        return 1
    finally:
        if not shares_java:
            _stop_spark()
    if shares_java:
        leave_spark()
    return 0


def _python(step: dict[str, Any], namespace: dict[str, Any]) -> str:
    # Blank lines in front make line numbers in tracebacks those of the document.
    source = "\n" * (step["line"] - 1) + step["source"]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, step["document"], "exec"), namespace)  # noqa: S102 - that is what this is for
    return printed.getvalue()


def _command(step: dict[str, Any], java: dict[str, str]) -> str:
    arguments = step["arguments"]
    sys.stderr.write(f"$ {' '.join(arguments)}\n")
    if LOADED_PYTHON in os.environ and Path(arguments[0]).name == "statebed":
        from docs import loaded_python  # noqa: PLC0415 - only there is it on the path

        environment = os.environ | java if _active_context() is None else os.environ
        done = loaded_python.run(arguments, folder=Path.cwd(), environment=environment, timeout=COMMAND_TIMEOUT_SECONDS)
        sys.stderr.write(done.stderr)
    else:
        done = subprocess.run(
            arguments, stdout=subprocess.PIPE, text=True, timeout=COMMAND_TIMEOUT_SECONDS, check=False
        )
    if done.returncode:
        raise SystemExit(f"{step['where']}: exit code {done.returncode}")
    return done.stdout


def connect_to_shared_java() -> dict[str, str]:
    """Use the Java of `shared_java.py`, if there is one, here but not in the processes that this one starts.

    Return the environment variables by which another process would find it.
    """
    java = {}
    if GATEWAY_PORT in os.environ:
        from pyspark import SparkContext  # noqa: PLC0415 - only where it is used

        SparkContext._ensure_initialized()
        context_class: Any = SparkContext
        context_class._initialize_context = _kept_context
        # Java says which functions of earlier documents it has dropped. Numbers of our own keep ours from being meant.
        gateway: Any = SparkContext._gateway
        gateway.gateway_property.pool.next_id = os.getpid() * 1_000_000
        java = {name: os.environ.pop(name) for name in (GATEWAY_PORT, GATEWAY_SECRET)}
    return java


def _kept_context(self: Any, configuration: Any) -> Any:
    """Return the Spark of an earlier document if its settings were the same, else a new one.

    It has its Python workers and all that they have loaded: to start these takes more than what most documents do.
    """
    java = self._jvm
    settings = sorted(
        line for line in configuration.toDebugString().splitlines() if not line.startswith(OF_ONE_DOCUMENT)
    )
    kept = getattr(getattr(java.org.apache.spark, "SparkContext$"), "MODULE$").getActive()
    if kept.isDefined() and java.System.getProperty(SETTINGS) == "\n".join(settings):
        return java.JavaSparkContext.fromSparkContext(kept.get())
    if kept.isDefined():
        kept.get().stop()
    java.System.setProperty(SETTINGS, "\n".join(settings))
    return java.JavaSparkContext(configuration)


def leave_spark() -> None:
    """End queries and forget the session, with its tables and settings; Spark is left to the next document."""
    if "pyspark.sql" in sys.modules:
        from pyspark import SparkContext  # noqa: PLC0415 - only where a document used it
        from pyspark.sql import SparkSession  # noqa: PLC0415 - as above

        session: Any = SparkSession._instantiatedSession
        if session is not None and SparkContext._active_spark_context is not None:
            for query in list(session._jsparkSession.sharedState().activeStreamingQueries().values()):
                query.stop()
            sessions: Any = SparkSession._get_j_spark_session_class(session._jvm)
            sessions.clearDefaultSession()
            sessions.clearActiveSession()
            SparkContext._active_spark_context = None  # nothing stops it when this process ends


def _stop_spark() -> None:
    if (context := _active_context()) is not None:
        context.stop()


def _active_context() -> Any:
    """Return the Spark that the document has used; None if it has not used any."""
    pyspark: Any = sys.modules.get("pyspark")
    return pyspark and pyspark.SparkContext._active_spark_context


if __name__ == "__main__":
    sys.exit(main())
