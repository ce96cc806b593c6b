"""Programs whose calls the walks of docs/architecture.md describe, and the comparison of both."""

import re
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa

import statebed as sb
from statebed import cli
from statebed.checkpoint import EpochDraft, Origin, Run, RunOptions
from statebed.state import (
    CompactionMode,
    ManagerOptions,
    MemoryController,
    TableManager,
    TaskInfo,
    Tiers,
    keyed_table_config,
    operator_entry,
)
from statebed.storage import ScopedStore, get_storage_provider

PACKAGE = Path(sb.__file__).parent.as_posix() + "/"
JOB = "trips"
MANY_KEYS = 200_000
SCHEMA = pa.schema([("driver", pa.string()), ("trips", pa.int64())])
TABLES = {"trips": keyed_table_config("trips", "Trips per driver", ["driver"], SCHEMA)}
_STEP = re.compile(r"^\| \d+ \| `([^`]+)` \| `([^`]+)` \|", re.MULTILINE)


@dataclass(frozen=True)
class Call:
    """A function that was called."""

    file: str
    function: str


@dataclass(frozen=True)
class Step(Call):
    """A step of a walk."""

    number: int


def steps_of(text: str, walk: str) -> list[Step]:
    """Return the steps of one walk, numbered from 1."""
    section = text.split(f"### {walk}\n", maxsplit=1)[1].split("\n#", maxsplit=1)[0]
    return [Step(file, function, number) for number, (file, function) in enumerate(_STEP.findall(section), start=1)]


def first_missing(steps: Iterable[Step], calls: Iterable[Call]) -> Step | None:
    """Return the first step that is not called after the step before it."""
    remaining = iter(calls)
    for step in steps:
        if not any((call.file, call.function) == (step.file, step.function) for call in remaining):
            return step
    return None


@contextmanager
def traced() -> Iterator[list[Call]]:
    """Collect the calls of the package's functions on this thread and on threads that are started meanwhile."""
    calls: list[Call] = []

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(PACKAGE):
            calls.append(Call(path.removeprefix(PACKAGE), frame.f_code.co_qualname))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def trace_key(folder: Path) -> list[Call]:
    """Write, checkpoint, evict, look up, compact, restore and inspect one key."""
    store = ScopedStore(get_storage_provider(folder / "state"), JOB)
    key = pa.table({"driver": ["ann"]})
    many = pa.table({"driver": [f"driver {number:08d}" for number in range(MANY_KEYS)]})
    ones = pa.table({"trips": pa.array([1] * MANY_KEYS, pa.int64())})
    tiers = Tiers(MemoryController(8 << 20), folder=folder / "spill")
    options = ManagerOptions(compaction=CompactionMode.IN_LINE)
    with traced() as calls:
        run = Run.open(store, JOB)
        with TableManager(
            TaskInfo(JOB, "count"), TABLES, store, restore_from=run.head, tiers=tiers, options=options
        ) as m:
            trips = m.get_keyed("trips")
            trips.upsert(key, pa.table({"trips": [1]}))
            _commit(run, m)
            trips.upsert(many, ones)
            trips.get(key)
            for number in range(6):
                trips.upsert(key, pa.table({"trips": [number]}))
                _commit(run, m)
        run = Run.open(store, JOB)
        with TableManager(TaskInfo(JOB, "count"), TABLES, store, restore_from=run.head) as m:
            values, _ = m.get_keyed("trips").get(key)
        rows = sb.read_state(folder / "state", job=JOB, operator="count").keys("ann").to_arrow()
    assert values["trips"].to_pylist() == rows["trips"].to_pylist() == [5]
    return calls


def trace_savepoint(folder: Path) -> list[Call]:
    """Make a savepoint with a command while a run is live, and start another run from it."""
    store = ScopedStore(get_storage_provider(folder / "state"), JOB)
    run = Run.open(store, JOB)
    with TableManager(TaskInfo(JOB, "count"), TABLES, store, restore_from=run.head) as manager:
        manager.get_keyed("trips").upsert(pa.table({"driver": ["ann"]}), pa.table({"trips": [1]}))
        _commit(run, manager)
    ended = threading.Event()

    def serve() -> None:
        while not ended.wait(0.02):
            run.serve_requests()
            if run.waiting_effects:
                run.commit(EpochDraft(operators=list(run.head.operators)))

    with traced() as calls:
        live = threading.Thread(target=serve, name="live")
        live.start()
        try:
            code = cli.main(["savepoint", "create", str(folder / "state"), JOB, "keep"])
        finally:
            ended.set()
            live.join(timeout=30)
        forked = Run.open(store, JOB, options=RunOptions(origin=Origin(savepoint="keep")))
    assert code == 0
    assert forked.head.base == 2
    return calls


def _commit(run: Run, manager: TableManager) -> None:
    stored = manager.checkpoint(run.next_epoch).result(timeout=60)
    manager.refresh(run.commit(EpochDraft(operators=[operator_entry([stored])])))
