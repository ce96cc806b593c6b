"""The driver's part of many epochs over a store in memory: what an epoch costs must not depend on how many there were.

python -m simulation.many_epochs 100000        (in tests/, prints the figures)
"""

import gc
import itertools
import resource
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

import pyarrow as pa

from statebed.checkpoint import EpochDraft, Publisher, Retention, Run, RunOptions
from statebed.checkpoint.environment import Environment
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.digest import crc32c, digest
from statebed.sinks import DebeziumFilesSink, Envelope, ParquetTableSink
from statebed.sinks.file_table import FileTableSink
from statebed.sinks.manifest import Manifest
from statebed.storage import MemoryStore, ScopedStore
from statebed.subtasks.outbox import encode_outbox

JOB = "counts"
EPOCH_SECONDS = 1
RETAINED = 10
SCHEMA = pa.schema([("k", pa.string()), pa.field("_weight", pa.int64(), nullable=False)])
OUTBOX = encode_outbox(pa.table([["a"], [1]], schema=SCHEMA))


class ForgetfulStore(MemoryStore):
    """A table's folder that keeps only the newest data file: older ones are never read, so the manifest alone grows."""

    _newest = ""

    def put(self, path: str, data: bytes) -> None:
        super().put(path, data)
        if path.startswith("epoch="):
            if self._newest and self._newest != path:
                self.delete(self._newest)
            self._newest = path


@dataclass(frozen=True)
class Figures:
    """Measurements over windows of equal length."""

    seconds: list[float]
    """Median of an epoch's processor time in each window: other processes on the machine do not count."""
    driver_bytes: list[int]
    """Bytes held by the run, the publisher and the sinks at the end of each window, without the stores."""
    entries: list[int]
    """Objects in the folder of the Parquet table's entries, at the end of each window."""
    resident_bytes: list[int]
    """Largest resident memory of the process up to then, the stores in it."""


class Life:
    """One run of a job with a Parquet table and Debezium files, epoch after epoch."""

    def __init__(self) -> None:
        self._clock = itertools.count(1_767_225_600_000_000, EPOCH_SECONDS * 1_000_000 // 20)
        environment = Environment(now_us=lambda: next(self._clock))
        self.disk = MemoryStore()
        options = RunOptions(retention=Retention(epochs=RETAINED, reader_grace="20 s"))
        self.run = Run.open(ScopedStore(self.disk, JOB), JOB, options=options, environment=environment)
        parquet = ParquetTableSink(sink_id="rows", path="memory://unused", job_id=JOB, schema=SCHEMA)
        debezium = DebeziumFilesSink(
            sink_id="changes", path="memory://unused", envelope=Envelope(JOB, "changes", ("k",))
        )
        self.tables = [_in_memory(sink) for sink in (parquet, debezium)]
        self.publisher = Publisher(self.run, [parquet, debezium])
        self.publisher.open()
        self._driver = (self.run, self.publisher, parquet, debezium)

    def epoch(self) -> None:
        """Do the work of a controller for one epoch."""
        run = self.run
        run.serve_requests()
        path = names.outbox_file(run.next_epoch, "op", "", 0, digest(OUTBOX))
        run.store.put(path, OUTBOX)
        outbox = pb.OutboxFile(operator_id="op", path=path, size=len(OUTBOX), rows=1, crc32c=crc32c(OUTBOX))
        sinks = [pb.SinkEntry(sink_id=name, operator_id="op") for name in ("rows", "changes")]
        position = pb.SourcePosition(kind="test", opaque=b"x")
        run.commit(EpochDraft(operators=[], outbox=[outbox], sinks=sinks, source_position=position))
        self.publisher.publish_pending()
        run.clean_up()

    def driver_bytes(self) -> int:
        return reachable_bytes(self._driver, apart=(self.disk, *self.tables))


def _in_memory(sink: FileTableSink) -> MemoryStore:
    store = ForgetfulStore()
    sink._store, sink._manifest = store, Manifest(store)
    return store


def reachable_bytes(roots: Iterable[Any], *, apart: Iterable[Any]) -> int:
    """Sizes of all Python objects that can be reached from `roots`, modules, classes and `apart` left out."""
    seen = {id(one) for one in apart}
    waiting, total = list(roots), 0
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type | type(sys)) or callable(one):
            continue
        seen.add(id(one))
        total += sys.getsizeof(one)
        waiting += gc.get_referents(one)
    return total


def measure(epochs: int, *, window: int) -> Figures:
    """Live `epochs` epochs, and measure every `window`."""
    life = Life()
    figures = Figures([], [], [], [])
    for _ in range(epochs // window):
        times = []
        for _ in range(window):
            started = time.process_time()
            life.epoch()
            times.append(time.process_time() - started)
        figures.seconds.append(median(times))
        figures.driver_bytes.append(life.driver_bytes())
        figures.entries.append(len(life.tables[0].list_level("_statebed").objects))
        figures.resident_bytes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    return figures


def main(epochs: int) -> None:
    """Print the first and the last window."""
    figures = measure(epochs, window=1_000)
    for name, place in (("first 1,000", 0), ("last 1,000", -1)):
        print(  # noqa: T201 - figures for the reader
            f"{name:>12} of {epochs:,} epochs: {figures.seconds[place] * 1e3:.2f} ms of processor time per epoch, "
            f"driver holds {figures.driver_bytes[place] / 1e3:.0f} kB, {figures.entries[place]} entries, "
            f"process {figures.resident_bytes[place] / 1e6:.0f} MB (stores included)"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]))
