"""Epochs that the newest state builds on, and the runs and lineages of a log; compared with a walk over all records."""

from hypothesis import given
from hypothesis import strategies as st

from statebed.checkpoint import CheckpointLog
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.sealed import seal
from statebed.inspect.chain import chain_of
from statebed.inspect.lineages import summarise_lineages, summarise_runs
from statebed.inspect.records import summarise_epochs
from statebed.storage import MemoryStore, ObjectStore

Records = dict[int, pb.CheckpointMetadata]


def log_of(steps: list[int | None]) -> Records:
    """Return one record for each step: None is an epoch, a number a run that begins that many data epochs back."""
    records: Records = {}
    run = base = 0
    lineage = ""
    for number, step in enumerate([0, *steps], start=1):
        if step is not None:
            run = number
            data = _walk(records, base)
            fork = step > 0 and len(data) > step
            base = data[step] if fork else base
            lineage = f"{number:012d}" if fork or not lineage else lineage
        records[number] = pb.CheckpointMetadata(
            job_id="j",
            epoch=number,
            kind=pb.EPOCH if step is None else pb.RUN_START,
            previous=number - 1,
            base=base,
            run=run,
            lineage=lineage,
            status=pb.COMPLETE,
            min_epoch=1,
            start_time_us=number,
            finish_time_us=number + 1,
        )
        base = number if step is None else base
    return records


def _walk(records: Records, base: int) -> list[int]:
    """The data epochs below, newest first."""
    found = []
    while base:
        found.append(base)
        base = records[base].base
    return found


STEPS = st.lists(st.one_of(st.none(), st.none(), st.none(), st.integers(0, 4)), max_size=30)


@given(STEPS, st.integers(1, 12))
def test_the_chain_is_what_a_walk_over_every_record_finds(steps: list[int | None], down_to: int) -> None:
    records = log_of(steps)
    head = records[max(records)]
    top = head.epoch if head.kind == pb.EPOCH else head.base
    alive = set(_walk(records, top))
    chain = chain_of(head, records.get, down_to=down_to)
    for number, record in records.items():
        if number >= down_to:
            assert chain.abandons(record) == (record.kind == pb.EPOCH and number not in alive)


@given(STEPS)
def test_runs_and_lineages_are_those_of_the_records(steps: list[int | None]) -> None:
    records = log_of(steps)
    log = CheckpointLog(_stored(records), "j")
    runs = summarise_runs(log)
    assert [run.run for run in runs] == [n for n, record in records.items() if record.kind == pb.RUN_START]
    for run in runs:
        own = [n for n, record in records.items() if record.run == run.run and record.kind == pb.EPOCH]
        assert (run.first_epoch, run.last_epoch) == ((min(own), max(own)) if own else (None, None))
    lineages = summarise_lineages(log)
    assert [one.lineage for one in lineages] == list(dict.fromkeys(r.lineage for r in records.values()))
    assert [one.status for one in lineages] == ["abandoned"] * (len(lineages) - 1) + ["current"]
    head = records[max(records)]
    alive = set(_walk(records, head.epoch if head.kind == pb.EPOCH else head.base))
    for one in lineages:
        kept = [n for n in alive if records[n].lineage == one.lineage]
        assert one.kept_until == max(kept, default=None)


def _stored(records: Records) -> MemoryStore:
    store = MemoryStore()
    for number, record in records.items():
        store.put(names.record(number), seal(record))
    return store


class Counting:
    """A store that counts what is read of it."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.reads = 0

    def __getattr__(self, name: str) -> object:
        if name in {"get", "get_range", "head", "list"}:
            self.reads += 1
        return getattr(self._store, name)


def test_of_ten_thousand_epochs_only_the_newest_are_read() -> None:
    store = Counting(_stored(log_of([None] * 9_999)))
    log = CheckpointLog(store, "j")  # type: ignore[arg-type]  # it forwards every verb
    newest = summarise_epochs(log, limit=20)
    assert [one.epoch for one in newest] == list(range(9_981, 10_001))
    assert store.reads < 60
    store.reads = 0
    assert [one.epoch for one in summarise_epochs(log, limit=5, before=100)] == [95, 96, 97, 98, 99]
    assert store.reads < 20
    store.reads = 0
    [run] = summarise_runs(log)
    assert (run.first_epoch, run.last_epoch) == (2, 10_000)
    [lineage] = summarise_lineages(log)
    assert lineage.kept_until == 10_000
    assert store.reads < 20


def test_forks_below_the_newest_epochs_are_judged_right_on_an_older_page() -> None:
    records = log_of([None] * 10 + [6] + [None] * 30)
    log = CheckpointLog(_stored(records), "j")
    older = summarise_epochs(log, limit=8, before=13)
    assert {one.epoch: one.status for one in older} == {
        5: "complete",
        6: "abandoned",
        7: "abandoned",
        8: "abandoned",
        9: "abandoned",
        10: "abandoned",
        11: "abandoned",
        12: "complete",
    }
