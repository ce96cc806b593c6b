"""The collector: deletes what a committed record allows, in the order that the protocol demands.

Objects leave many at a time, records one by one.

Two passes. The short one follows the records that leave and deletes what only they named; it lists nothing. The sweep
lists the job's folder and finds what no record ever named: attempts that failed, superseded runs' leavings, the rest of
an interrupted collection. Both resume by themselves, and both stop before the first deletion when anything that must be
kept cannot be read.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass

from statebed.checkpoint.log import CheckpointLog
from statebed.checkpoint.references import References, markers_of
from statebed.errors import CollectionError, FormatError, StorageError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.protocol.cleanup import (
    Licence,
    deletion_order,
    doomed_records,
    doomed_runs,
    find_licence,
    is_garbage,
    protecting_pins,
    protecting_records,
)


@dataclass(frozen=True)
class Collected:
    """What one collection removed, or would remove."""

    records: tuple[int, ...] = ()
    paths: tuple[str, ...] = ()
    """Of the other objects, in the order in which they leave."""
    swept: bool = False

    @property
    def objects(self) -> int:
        return len(self.paths)


@dataclass(frozen=True)
class Collection:
    """One collection, prepared from what the run knew at that moment; may run on another thread while epochs go on.

    What a later record of the run can name is protected by the records in this view, lies in the folder of a later
    epoch, or is in flight. So no round of compaction may begin while it runs: `in_flight` would not know its files.
    """

    collector: "Collector"
    records: Sequence[pb.CheckpointMetadata]
    grace_us: int
    sweep: bool
    in_flight: Container[str] = ()

    def run(self, *, dry_run: bool = False) -> Collected:
        """Delete, or with `dry_run` say what would be deleted."""
        return self.collector.collect(
            self.records, grace_us=self.grace_us, sweep=self.sweep, in_flight=self.in_flight, dry_run=dry_run
        )


class Collector:
    """Collects the garbage of one job as its live run sees the log."""

    def __init__(self, log: CheckpointLog, references: References) -> None:
        self._log = log
        self._references = references

    def collect(
        self,
        records: Sequence[pb.CheckpointMetadata],
        *,
        grace_us: int,
        sweep: bool,
        in_flight: Container[str] = (),
        dry_run: bool = False,
    ) -> Collected:
        """`records`: the run's view of the log, ascending, ending with the head that it committed itself."""
        head = records[-1]
        licence = find_licence(records, now_us=self._log.environment.now_us(), grace_us=grace_us)
        if licence is None:
            return Collected()
        protected = self._protected(records, licence)
        if sweep:
            doomed, garbage = self._sweep(licence, protected, head, in_flight)
            garbage += self._old_runs(protecting_records(records, licence=licence))
        else:
            doomed, garbage = self._follow(records, licence, protected, head)
            # A compaction may write again what a record that leaves once named.
            garbage = [path for path in garbage if path not in in_flight]
        if not dry_run:
            # Data is gone before the metadata that names it begins to leave.
            self._log.store.delete_many([path for path in garbage if not names.is_metadata(path)])
            self._log.store.delete_many([path for path in garbage if names.is_metadata(path)])
            for number in doomed:
                self._delete_record(number)
        return Collected(tuple(doomed), tuple(garbage), sweep)

    def _protected(self, records: Sequence[pb.CheckpointMetadata], licence: Licence) -> set[str]:
        protected: set[str] = set()
        self._references.prefetch(records)
        keeping = protecting_records(records, licence=licence)
        pins = protecting_pins(records, licence=licence)
        try:
            pinned = [self._log.savepoint(pin) for pin in pins.values()]
            for record in [*keeping, *pinned]:
                protected.update(self._references.of(record).sizes)
        except (FormatError, StorageError) as error:
            raise CollectionError(
                "nothing was deleted: something that must be kept cannot be read, so it is not known what it names",
                where=str(error),
                fix="repair it first; collection goes on by itself afterwards",
            ) from error
        self._references.keep_only([*records, *pinned])
        for record in keeping:
            protected.update(markers_of(record))
        return protected | set(pins)

    def _follow(
        self,
        records: Sequence[pb.CheckpointMetadata],
        licence: Licence,
        protected: set[str],
        head: pb.CheckpointMetadata,
    ) -> tuple[list[int], list[str]]:
        doomed = doomed_records([record.epoch for record in records], licence=licence, head=head.epoch)
        candidates: set[str] = set()
        metadata: set[str] = set()
        for record in records:
            if record.epoch not in doomed:
                continue
            try:
                named = self._references.of(record, interrupted=True)
            except FormatError:
                continue  # damaged: what it names is left to the sweep, which needs no metadata of it
            candidates |= set(named.sizes) | markers_of(record)
            metadata |= named.metadata
            for pin in record.pins:
                if pin.path not in protected:
                    candidates |= {pin.path} | self._left_of_savepoint(pin)
                    metadata.add(pin.path)
        return doomed, deletion_order(candidates - protected, metadata=metadata)

    def _left_of_savepoint(self, pin: pb.Pin) -> set[str]:
        try:
            return set(self._references.of(self._log.savepoint(pin), interrupted=True).sizes)
        except FormatError:
            return set()  # gone or damaged: the sweep finds what it named

    def _sweep(
        self, licence: Licence, protected: set[str], head: pb.CheckpointMetadata, in_flight: Container[str]
    ) -> tuple[list[int], list[str]]:
        store = self._log.store
        listed = [info.path for folder in (names.CHECKPOINTS, names.COMPACTIONS) for info in store.list(folder)]
        present = [epoch for path in listed if (epoch := names.epoch_of(path)) and path == names.record(epoch)]
        doomed = doomed_records(present, licence=licence, head=head.epoch)
        garbage = [
            path
            for path in listed
            if is_garbage(path, protected=protected, head=head.epoch, run=head.run, in_flight=in_flight)
        ]
        return doomed, deletion_order(garbage, metadata={path for path in garbage if names.is_metadata(path)})

    def _old_runs(self, retained: Sequence[pb.CheckpointMetadata]) -> list[str]:
        """Ends and heartbeats of runs long gone; nothing names them, and nothing rests on them."""
        found = {info.path: names.run_of(info.path) for info in self._log.store.list(names.RUNS)}
        doomed = doomed_runs({run for run in found.values() if run is not None}, retained=retained)
        return sorted(path for path, run in found.items() if run in doomed)

    def _delete_record(self, number: int) -> None:
        path = names.record(number)
        self._log.store.delete(path)
        if self._log.exists(number):  # the next record must not go before this one is gone
            raise CollectionError(
                "a deleted record is still there",
                where=f"{self._log.store.url}/{path}",
                fix="check the store's consistency",
            )
