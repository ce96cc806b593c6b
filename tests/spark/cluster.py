"""A Spark cluster of several processes on this machine: a master, two workers, and what they start.

Each worker has a folder of its own for the host-shared cache, as if it were another host. Processes are found by
walking /proc from those that the test started, and killed by their id.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyspark
from loopback import free_ports, without_proxy

TESTS = Path(__file__).parents[1]
PYTHON_PATH = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
"""Import path with which every process of a test can import shared test modules."""
READY_WITHIN_SECONDS = 90.0
_HOST = "127.0.0.1"
_PARENT_FIELD = 1  # of /proc/PID/stat, counted after the closing parenthesis of the program's name
_EXECUTOR = "CoarseGrainedExecutorBackend"
_DAEMON = "pyspark.daemon"


@dataclass(frozen=True)
class Worker:
    """One of the cluster's hosts."""

    process: subprocess.Popen[bytes]
    cache: Path


@dataclass(frozen=True)
class Cluster:
    """Processes that are running."""

    url: str
    folder: Path
    master: subprocess.Popen[bytes]
    workers: tuple[Worker, ...]

    def executors(self) -> list[int]:
        """Ids of the executors of every driver."""
        return [pid for worker in self.workers for pid in descendants(worker.process.pid) if _is(pid, _EXECUTOR)]

    def python_workers(self) -> list[int]:
        """Ids of the Python workers that executors' daemons have forked."""
        daemons = [pid for executor in self.executors() for pid in _children(executor) if _is(pid, _DAEMON)]
        return [pid for daemon in daemons for pid in _children(daemon)]

    def drop_caches(self) -> None:
        """Lose what the hosts have cached."""
        for worker in self.workers:
            shutil.rmtree(worker.cache, ignore_errors=True)

    def logs(self) -> str:
        """The end of what the cluster's processes wrote, for a failed test."""
        return "\n".join(f"== {path.name}\n{path.read_text()[-3000:]}" for path in sorted(self.folder.glob("*.log")))


@contextlib.contextmanager
def started_cluster(folder: Path, environment: Mapping[str, str], *, workers: int = 2) -> Iterator[Cluster]:
    """Start a master and workers of one core each; at the end all of them and their executors are killed."""
    port, web, *ports = free_ports(2 + 2 * workers)
    processes: list[subprocess.Popen[bytes]] = []
    home = Path(pyspark.__file__).parent
    common = {
        **os.environ,
        **environment,
        "SPARK_HOME": str(home),
        "SPARK_SCALA_VERSION": "2.13",
        "SPARK_LOCAL_IP": _HOST,
        "PYTHONPATH": PYTHON_PATH,
    }

    def start(name: str, *arguments: str, **more: str) -> subprocess.Popen[bytes]:
        java = str(Path(os.environ["JAVA_HOME"], "bin", "java")) if "JAVA_HOME" in os.environ else "java"
        # Retries without end: here executors die on purpose.
        options = ("-Xmx256m", "-Dspark.deploy.maxExecutorRetries=-1", "-cp", f"{home}/jars/*")
        with (folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                (java, *options, *arguments), env={**common, **more}, stdout=log, stderr=subprocess.STDOUT
            )
        processes.append(process)
        return process

    try:
        address = ("--host", _HOST, "--port", str(port), "--webui-port", str(web))
        master = start("master", "org.apache.spark.deploy.master.Master", *address)
        made = []
        for number in range(workers):
            place, cache = folder / f"worker-{number}", folder / f"cache-{number}"
            cache.mkdir()
            # Addresses of their own, all of them on loopback: Spark takes them for hosts, and starts no second attempt
            # at a task on the host of the first.
            host = f"127.0.0.{2 + number}"
            arguments = ("--cores", "1", "--memory", "2g", "--work-dir", str(place), "--host", host)
            listening = ("--port", str(ports[2 * number]), "--webui-port", str(ports[2 * number + 1]))
            process = start(
                f"worker-{number}",
                "org.apache.spark.deploy.worker.Worker",
                *arguments,
                *listening,
                f"spark://{_HOST}:{port}",
                SPARK_LOCAL_IP=host,
                XDG_CACHE_HOME=str(cache),
                SPARK_LOCAL_DIRS=str(folder / f"local-{number}"),
            )
            made.append(Worker(process, cache))
        cluster = Cluster(f"spark://{_HOST}:{port}", folder, master, tuple(made))
        _wait_until_ready(cluster, web)
        yield cluster
    finally:
        for process in reversed(processes):
            for pid in [*descendants(process.pid), process.pid]:
                kill(pid)
            process.wait(timeout=30)


def _wait_until_ready(cluster: Cluster, web: int) -> None:
    deadline = time.monotonic() + READY_WITHIN_SECONDS
    wanted = f'"aliveworkers" : {len(cluster.workers)}'
    while time.monotonic() < deadline and cluster.master.poll() is None:
        with (
            contextlib.suppress(urllib.error.URLError, OSError),
            without_proxy(),
            urllib.request.urlopen(f"http://{_HOST}:{web}/json/", timeout=5) as answer,
        ):
            if wanted in answer.read().decode():
                return
        time.sleep(0.2)
    raise AssertionError(f"the cluster was not ready\n{cluster.logs()}")


def descendants(pid: int) -> list[int]:
    """Ids of all living processes below `pid`, children before their own."""
    found: list[int] = []
    parents = _parents()
    level = [pid]
    while level:
        level = [child for child, parent in parents.items() if parent in level]
        found += level
    return found


def kill(pid: int) -> bool:
    """SIGKILL; False if it was gone already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _children(pid: int) -> list[int]:
    return [child for child, parent in _parents().items() if parent == pid]


def _parents() -> dict[int, int]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it ended while we looked
                state = (entry / "stat").read_text().rpartition(")")[2].split()
                if state[0] not in ("Z", "X"):
                    found[int(entry.name)] = int(state[_PARENT_FIELD])
    return found


def _is(pid: int, name: str) -> bool:
    with contextlib.suppress(OSError):
        return name in Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return False
