"""A Python process with statebed and Spark imported, which forks a process for each document and each command in it.

The imports take more than a second of processor time, and the documents start about a hundred processes. A forked
process has the modules. In everything else it is like a new one: its environment, its folder, its input and output.
"""

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from docs.run_document import LOADED_PYTHON

from docs import run_document

TESTS = Path(__file__).parents[1]
MODULES = (
    "duckdb",
    "pandas",  # pyarrow imports it when it makes an array of Python values
    "pyspark.sql.functions",
    "pyspark.testing",  # Py4J imports it when it sends a list to Java
    "statebed.cli.app",
    "statebed.cli.shell",
    "statebed.queries",
    "statebed.spark.epoch.level_task",
    "typer._adapters",
)
"""Modules that documents and commands import when they run."""
STARTED_WITHIN_SECONDS = 60


class LoadedPython:
    """Starts the process when the first document needs it."""

    def __init__(self, address: Path) -> None:
        self.address = address
        self._process: subprocess.Popen[bytes] | None = None

    def variables(self) -> Mapping[str, str]:
        """Return the environment variable by which documents find the process."""
        if self._process is None:
            command = [sys.executable, "-m", "docs.loaded_python", str(self.address)]
            self._process = subprocess.Popen(command, cwd=TESTS, stdin=subprocess.DEVNULL)
            deadline = time.monotonic() + STARTED_WITHIN_SECONDS
            while not self.address.exists():
                assert self._process.poll() is None, "the process has ended"
                assert time.monotonic() < deadline, f"it has not started within {STARTED_WITHIN_SECONDS} s"
                time.sleep(0.02)
        return {LOADED_PYTHON: str(self.address)}

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def run(
    command: Sequence[str], *, given: str = "", folder: Path, environment: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run `statebed`, or else a document, in a fork of the process that the environment names."""
    request = {"command": list(command), "folder": str(folder), "environment": dict(environment)}
    with (
        tempfile.TemporaryFile("w+") as stdin,
        tempfile.TemporaryFile("w+", errors="replace") as stdout,
        tempfile.TemporaryFile("w+", errors="replace") as stderr,
        socket.socket(socket.AF_UNIX) as connection,
    ):
        stdin.write(given)
        stdin.seek(0)
        connection.connect(environment[LOADED_PYTHON])
        socket.send_fds(connection, [b"."], [stdin.fileno(), stdout.fileno(), stderr.fileno()])
        connection.sendall(json.dumps(request).encode())
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(timeout)
        answer = connection.makefile()
        pid = int(answer.readline())
        try:
            status = int(answer.readline())
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise
        stdout.seek(0)
        stderr.seek(0)
        return subprocess.CompletedProcess(list(command), status, stdout.read(), stderr.read())


def serve(address: str) -> None:
    """Fork a process for each request until the tests end; return in the forked process when its command is done."""
    for module in MODULES:
        importlib.import_module(module)
    sys.path.remove(str(TESTS))
    gc.collect()
    gc.freeze()  # a forked process would otherwise copy every page of the modules in its first collection
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{address}.part")
        listener.listen()
        listener.settimeout(10)
        tests = os.getppid()
        Path(f"{address}.part").rename(address)
        while True:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                if os.getppid() != tests:
                    return  # they were killed
                continue
            if os.fork() == 0:
                break
            connection.close()
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG) != (0, 0):
                    pass
    with connection:
        _, descriptors, _, _ = socket.recv_fds(connection, 1, 3)
        request = json.loads(connection.makefile().read())
        pid = os.fork()
        if pid:
            connection.sendall(f"{pid}\n".encode())
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            connection.sendall(f"{status}\n".encode())
            return
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    _run(request["command"])


def _run(command: list[str]) -> None:
    """Run the command that the process was forked for."""
    sys.argv = command
    if Path(command[0]).name == "statebed":
        from statebed.cli import main  # noqa: PLC0415 - not in the process of the tests

        run_document.connect_to_shared_java()
        try:
            status = main()
        finally:
            run_document.leave_spark()
        sys.exit(status)
    sys.exit(run_document.main())


if __name__ == "__main__":
    serve(sys.argv[1])
