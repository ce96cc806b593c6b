"""Clean-up: deletes what a committed record allows, in the order that the protocol demands.

Objects are deleted in batches, records one by one.

There are two kinds of pass. The short pass follows the records to delete and deletes what only they referred to; it
lists nothing. The sweep lists the job's folder and finds what no record refers to: failed attempts, leftovers of
superseded runs, the rest of an interrupted clean-up. Both resume by themselves, and both stop before the first deletion
if anything that must be kept cannot be read.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass

from statebed.checkpoint.log import CheckpointLog
from statebed.checkpoint.references import References, markers_of
from statebed.errors import CleanupError, FormatError, StorageError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.protocol.cleanup import (
    Licence,
    deletion_order,
    find_licence,
    is_garbage,
    protecting_pins,
    protecting_records,
    records_to_delete,
    runs_to_delete,
)


@dataclass(frozen=True)
class CleanupResult:
    """Objects that a clean-up removed, or would remove."""

    records: tuple[int, ...] = ()
    paths: tuple[str, ...] = ()
    """Paths of the other objects, in order of deletion."""
    swept: bool = False

    @property
    def objects(self) -> int:
        return len(self.paths)


@dataclass(frozen=True)
class PreparedCleanup:
    """A clean-up, prepared from the records of the run at that moment. It may run on another thread during later
    epochs.

    Whatever a later record of the run can refer to is protected by the records in this view, stored in the folder of a
    later epoch, or in flight. No compaction may start while the clean-up runs: `in_flight` would not include its files.
    """

    cleaner: "Cleaner"
    records: Sequence[pb.CheckpointMetadata]
    grace_us: int
    sweep: bool
    in_flight: Container[str] = ()

    def run(self, *, dry_run: bool = False) -> CleanupResult:
        """Delete the objects, or with `dry_run` only return what would be deleted."""
        return self.cleaner.clean_up(
            self.records, grace_us=self.grace_us, sweep=self.sweep, in_flight=self.in_flight, dry_run=dry_run
        )


class Cleaner:
    """Cleans up one job, based on the log as its live run sees it."""

    def __init__(self, log: CheckpointLog, references: References) -> None:
        self._log = log
        self._references = references

    def clean_up(
        self,
        records: Sequence[pb.CheckpointMetadata],
        *,
        grace_us: int,
        sweep: bool,
        in_flight: Container[str] = (),
        dry_run: bool = False,
    ) -> CleanupResult:
        """Delete what the records allow, or with `dry_run` only return it.

        `records` is the run's view of the log, ascending, and ends with the head that the run committed itself.
        """
        head = records[-1]
        licence = find_licence(records, now_us=self._log.environment.now_us(), grace_us=grace_us)
        if licence is None:
            return CleanupResult()
        protected = self._protected(records, licence)
        if sweep:
            doomed, garbage = self._sweep(licence, protected, head, in_flight)
            garbage += self._old_runs(protecting_records(records, licence=licence))
        else:
            doomed, garbage = self._follow(records, licence, protected, head)
            # A compaction may write a file again that a deleted record referred to.
            garbage = [path for path in garbage if path not in in_flight]
        if not dry_run:
            # All data is deleted before any metadata that refers to it.
            self._log.store.delete_many([path for path in garbage if not names.is_metadata(path)])
            self._log.store.delete_many([path for path in garbage if names.is_metadata(path)])
            for number in doomed:
                self._delete_record(number)
        return CleanupResult(tuple(doomed), tuple(garbage), sweep)

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
            raise CleanupError(
                "nothing was deleted: an object that must be kept cannot be read, so its references are unknown",
                where=str(error),
                fix="repair it first; clean-up then continues by itself",
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
        doomed = records_to_delete([record.epoch for record in records], licence=licence, head=head.epoch)
        candidates: set[str] = set()
        metadata: set[str] = set()
        for record in records:
            if record.epoch not in doomed:
                continue
            try:
                named = self._references.of(record, interrupted=True)
            except FormatError:
                continue  # damaged: its files are left to the sweep, which does not need its metadata
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
            return set()  # missing or damaged: its files are left to the sweep

    def _sweep(
        self, licence: Licence, protected: set[str], head: pb.CheckpointMetadata, in_flight: Container[str]
    ) -> tuple[list[int], list[str]]:
        store = self._log.store
        listed = [info.path for folder in (names.CHECKPOINTS, names.COMPACTIONS) for info in store.list(folder)]
        present = [epoch for path in listed if (epoch := names.epoch_of(path)) and path == names.record(epoch)]
        doomed = records_to_delete(present, licence=licence, head=head.epoch)
        garbage = [
            path
            for path in listed
            if is_garbage(path, protected=protected, head=head.epoch, run=head.run, in_flight=in_flight)
        ]
        return doomed, deletion_order(garbage, metadata={path for path in garbage if names.is_metadata(path)})

    def _old_runs(self, retained: Sequence[pb.CheckpointMetadata]) -> list[str]:
        """Return the end and heartbeat objects of old runs. Nothing refers to them or depends on them."""
        runs = {info.path: names.run_of(info.path) for info in self._log.store.list(names.RUNS)}
        doomed = runs_to_delete({run for run in runs.values() if run is not None}, retained=retained)
        return sorted(path for path, run in runs.items() if run in doomed)

    def _delete_record(self, number: int) -> None:
        path = names.record(number)
        self._log.store.delete(path)
        if self._log.exists(number):  # records must disappear in ascending order
            raise CleanupError(
                "a deleted record still exists",
                where=f"{self._log.store.url}/{path}",
                fix="check the store's consistency",
            )
