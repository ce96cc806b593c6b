"""Drivers as processes of their own: start one, watch the log of records, kill it with all that it started."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from spark.cluster import PYTHON_PATH, descendants, kill
from spark.faults_driver import Settings
from spark.faults_world import JOB

from statebed.checkpoint import CheckpointLog
from statebed.format import checkpoint_pb2 as pb
from statebed.storage import ScopedStore, get_storage_provider

SIGKILLED = -9
ENDS_WITHIN_SECONDS = 600.0
_SCRIPT = Path(__file__).with_name("faults_driver.py")


@dataclass(frozen=True)
class Driver:
    """A driver that runs, or has run."""

    process: subprocess.Popen[bytes]
    log: Path

    def kill(self) -> None:
        """SIGKILL Python first, which would start the JVM's workers again, then what it started."""
        below = descendants(self.process.pid)
        for pid in (self.process.pid, *below):
            kill(pid)
        self.process.wait(timeout=30)

    def wait(self, seconds: float = ENDS_WITHIN_SECONDS) -> int:
        """The exit code."""
        try:
            return self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"the driver did not end within {seconds:g} s\n{self.output()}") from error

    def output(self) -> str:
        return self.log.read_text(errors="replace")[-6000:]


@contextlib.contextmanager
def started(settings: Settings, environment: Mapping[str, str] | None = None) -> Iterator[Driver]:
    """Start a driver; whatever happens, it is gone afterwards."""
    folder = Path(settings.folder)
    log = folder / f"driver-{len(list(folder.glob('driver-*.log')))}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            (sys.executable, str(_SCRIPT), json.dumps(asdict(settings))),
            env={**os.environ, "PYTHONPATH": PYTHON_PATH, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    driver = Driver(process, log)
    try:
        yield driver
    finally:
        driver.kill()


@dataclass(frozen=True)
class Watched:
    """The log of the job's records, as anybody can read it."""

    state: str
    options: tuple[tuple[str, str], ...] = ()

    def log(self) -> CheckpointLog:
        return CheckpointLog(ScopedStore(get_storage_provider(self.state, dict(self.options)), JOB), JOB)

    def head(self) -> pb.CheckpointMetadata | None:
        return self.log().recover().head

    def epoch(self) -> int:
        head = self.head()
        return 0 if head is None else head.epoch

    def wait_for(self, epoch: int, driver: Driver, seconds: float = 400.0) -> None:
        """Wait until the log has reached the epoch, while the driver lives."""
        deadline = time.monotonic() + seconds
        while self.epoch() < epoch:
            assert driver.process.poll() is None, driver.output()
            assert time.monotonic() < deadline, f"epoch {epoch} was not reached\n{driver.output()}"
            time.sleep(0.1)
