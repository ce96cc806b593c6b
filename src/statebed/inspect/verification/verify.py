"""Verification of every checksum and every reference in a job's folder; each object is read once.

It is read-only and works alongside a running job: objects that clean-up removes in the meantime are not reported as
missing. Records are checked first, then the metadata that they refer to, then everything that this refers to. A damaged
object is reported with all epochs and savepoints that need it.
"""

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from statebed.checkpoint.log import CheckpointLog
from statebed.errors import (
    EpochNotRetainedError,
    FormatError,
    MissingFileError,
    NewerFormatError,
    ObjectMissingError,
    SavepointError,
)
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.sealed import open_sealed
from statebed.inspect.jobs import open_log
from statebed.inspect.verification import side_objects
from statebed.inspect.verification.bytes_check import Expectation, problem_of, problem_of_bytes
from statebed.inspect.verification.findings import (
    DamageKind,
    Finding,
    ObjectKind,
    SinkTable,
    UnprovenLoss,
    Verification,
)
from statebed.inspect.verification.log_check import READS_AT_ONCE, LogReading, newest_record, read_log
from statebed.inspect.verification.needs import (
    NeededObject,
    NeededObjects,
    NeedingRecord,
    data_files_of,
    finding,
    metadata_of,
    named_directly,
)
from statebed.protocol.records import data_epoch_of
from statebed.protocol.sink_history import AcceptedLoss, histories_after, history_of

_MISSING = "it is referenced but missing"
_NAMING = {ObjectKind.RECORD, ObjectKind.SAVEPOINT, ObjectKind.SUBTASK_METADATA}
"""Kinds of objects that refer to others."""

_IN_PROCESS = "memory://"
_TRANSIENT = {"memory", "console"}
"""Kinds of sinks whose rows end with their process."""

M = TypeVar("M", pb.CheckpointMetadata, pb.OperatorCheckpointMetadata)

OnProgress = Callable[["Progress"], None]


@dataclass(frozen=True)
class Progress:
    """Progress of a verification."""

    done_bytes: int
    total_bytes: int
    objects: int
    findings: int


def verify(
    state: str,
    job: str | None = None,
    *,
    epoch: int | None = None,
    savepoint: str | None = None,
    on_progress: OnProgress | None = None,
) -> Verification:
    """Check every object of a job (by default the only one), or only those that one epoch or savepoint needs."""
    return verify_log(open_log(state, job), epoch=epoch, savepoint=savepoint, on_progress=on_progress)


def verify_log(
    log: CheckpointLog,
    *,
    epoch: int | None = None,
    savepoint: str | None = None,
    on_progress: OnProgress | None = None,
) -> Verification:
    """Check the objects of an open log like `verify`."""
    return _Verifier(log, on_progress or (lambda _: None)).verify(epoch, savepoint)


@dataclass(frozen=True)
class _ReadObject:
    """An object that was read."""

    need: NeededObject
    data: bytes | None = None
    """Bytes of a metadata object."""
    size: int = 0
    finding: Finding | None = None


class _Verifier:
    def __init__(self, log: CheckpointLog, on_progress: OnProgress) -> None:
        self._log = log
        self._store = log.store
        self._on_progress = on_progress
        self._findings: list[Finding] = []
        self._absent: list[NeededObject] = []
        self._awaited: list[UnprovenLoss] = []
        self._objects = 0
        self._bytes = 0
        self._total = 0

    def verify(self, epoch: int | None, savepoint: str | None) -> Verification:
        """Check everything, or what one epoch or savepoint needs."""
        partly = epoch is not None or savepoint is not None
        listed = {} if partly else self._listed()
        reading = read_log(self._log, listed)
        pins, epochs = reading.pins(), sorted(reading.records)
        if partly:
            epochs = self._chosen_epoch(reading, epoch)
            pins = self._chosen_pin(reading, savepoint)
        self._findings += [problem for problem in reading.findings if not partly or epoch in problem.epochs]
        self._count(reading.bytes, objects=len(reading.records) + len(reading.lost))
        needers = [(reading.records[number], reading.needing_record(number)) for number in epochs]
        needers += self._savepoints(pins)
        metadata, needs = self._needs(needers)
        self._total = self._bytes + sum(need.expected.size for need in needs.all())
        for looked in self._concurrently(self._check, needs.all()):
            self._take(looked)
        markers = set() if partly else self._check_beside(reading, listed)
        self._name_absent()
        named = {*needs.paths, *metadata.paths, *markers, *pins}
        known = not reading.lost and not any(problem.kind in _NAMING for problem in self._findings)
        orphans = side_objects.orphans(listed, named, reading.head) if known and not partly and reading.head else []
        return Verification(
            job=self._log.job_id,
            where=self._store.url,
            head=reading.head.epoch if reading.head else None,
            data_epoch=data_epoch_of(reading.head) if reading.head else 0,
            min_epoch=reading.min_epoch,
            epochs=tuple(epochs),
            savepoints=tuple(sorted(pin.savepoint for pin, alive in pins.values() if alive)),
            objects=self._objects,
            bytes=self._bytes,
            findings=tuple(sorted(self._findings, key=lambda problem: problem.path)),
            awaited=tuple(self._awaited),
            orphans=tuple(orphans),
            orphans_known=known and not partly,
            sink_tables=() if partly else tuple(_sink_tables(reading, listed)),
        )

    # ---- what there is to check --------------------------------------------------------------------------------

    def _listed(self) -> dict[str, int]:
        top = self._store.list_level("")
        inner = [info for folder in top.folders if folder != names.SPARK for info in self._store.list(folder)]
        return {info.path: info.size for info in [*top.objects, *inner]}

    def _chosen_epoch(self, reading: LogReading, epoch: int | None) -> list[int]:
        if epoch is None or epoch in reading.records:
            return [] if epoch is None else [epoch]
        if epoch in reading.lost:
            return []
        raise EpochNotRetainedError(
            f"epoch {epoch} has no record",
            where=f"job {self._log.job_id}, {self._store.url}",
            fix="`statebed ls` lists the existing epochs",
        )

    def _chosen_pin(self, reading: LogReading, savepoint: str | None) -> dict[str, tuple[pb.Pin, bool]]:
        alive = {path: pin for path, pin in reading.pins().items() if pin[1]}
        chosen = {path: pin for path, pin in alive.items() if pin[0].savepoint == savepoint}
        if savepoint is not None and not chosen:
            known = sorted(pin.savepoint for pin, _ in alive.values())
            raise SavepointError(
                f"there is no savepoint {savepoint!r}",
                where=f"job {self._log.job_id}; savepoints: {', '.join(known) or 'none'}",
                fix="choose one of these",
            )
        return chosen

    def _savepoints(self, pins: dict[str, tuple[pb.Pin, bool]]) -> list[tuple[pb.CheckpointMetadata, NeedingRecord]]:
        """Return the copies of records that savepoints retain, as far as they can be read."""
        wanted = [
            NeededObject(
                ObjectKind.SAVEPOINT,
                Expectation(path, int(pin.size), int(pin.crc32c)),
                {NeedingRecord(int(pin.epoch), savepoint=pin.savepoint, strict=alive)},
            )
            for path, (pin, alive) in pins.items()
        ]
        return [(copy, needer) for need, copy in self._parsed(pb.CheckpointMetadata, wanted) for needer in need.needers]

    def _needs(self, needers: list[tuple[pb.CheckpointMetadata, NeedingRecord]]) -> tuple[NeededObjects, NeededObjects]:
        """Return the metadata, which is read and checked here, and the objects that it and the records refer to."""
        metadata, needs = NeededObjects(), NeededObjects()
        for record, needer in needers:
            for expected in metadata_of(record):
                metadata.add(ObjectKind.SUBTASK_METADATA, expected, [needer])
            for kind, expected in named_directly(record):
                needs.add(kind, expected, [needer])
        for need, parsed in self._parsed(pb.OperatorCheckpointMetadata, metadata.all()):
            for expected in data_files_of(parsed):
                needs.add(ObjectKind.DATA, expected, need.needers)
        return metadata, needs

    # ---- checking ----------------------------------------------------------------------------------------------

    def _parsed(self, kind: type[M], wanted: list[NeededObject]) -> Iterator[tuple[NeededObject, M]]:
        """Yield the sealed objects that are intact."""
        for looked in self._concurrently(self._read, wanted):
            self._take(looked)
            if looked.data is None:
                continue
            try:
                yield looked.need, open_sealed(kind, looked.data, where=looked.need.path)
            except NewerFormatError:
                raise
            except FormatError as error:
                self._findings.append(looked.need.finding(DamageKind.DAMAGED, error.what))

    def _read(self, need: NeededObject) -> _ReadObject:
        try:
            data = self._store.get(need.path)
        except ObjectMissingError:
            return _ReadObject(need, finding=need.finding(DamageKind.MISSING, _MISSING))
        problem = problem_of_bytes(data, need.expected)
        if problem is not None:
            return _ReadObject(need, None, len(data), need.finding(DamageKind.DAMAGED, problem))
        return _ReadObject(need, data, len(data))

    def _check(self, need: NeededObject) -> _ReadObject:
        try:
            problem = problem_of(self._store, need.expected)
        except (ObjectMissingError, MissingFileError):
            return _ReadObject(need, finding=need.finding(DamageKind.MISSING, _MISSING))
        finding = None if problem is None else need.finding(DamageKind.DAMAGED, problem)
        return _ReadObject(need, None, need.expected.size, finding)

    def _check_beside(self, reading: LogReading, listed: dict[str, int]) -> set[str]:
        """Check markers, requests, ends and heartbeats of runs that are there; return the paths of the markers."""
        markers = {
            names.published(epoch, sink.sink_id): (epoch, sink.sink_id)
            for epoch, record in reading.records.items()
            for sink in record.sinks
        }
        checks = [
            partial(side_objects.check_marker, self._store, path, *place)
            for path, place in markers.items()
            if path in listed
        ]
        checks += [
            partial(side_objects.check_request, self._store, path)
            for path in listed
            if names.request_of(path) is not None or names.request_of_answer(path) is not None
        ]
        checks += [
            partial(side_objects.check_run, self._store, path) for path in listed if side_objects.is_of_a_run(path)
        ]
        with ThreadPoolExecutor(READS_AT_ONCE, thread_name_prefix="statebed-verify") as pool:
            for checked in pool.map(lambda check: check(), checks):
                self._take_beside(checked)
        newest = newest_record(self._log)
        retained = {n: record for n, record in reading.records.items() if newest and n >= newest.min_epoch}
        self._findings += side_objects.missing_markers(self._store, retained, listed)
        missing = {problem.path for problem in self._findings}
        self._awaited = [loss for loss in side_objects.awaited(retained, newest, listed) if loss.path not in missing]
        return set(markers)

    def _take(self, looked: _ReadObject) -> None:
        if looked.finding is not None and looked.finding.trouble is DamageKind.MISSING:
            self._absent.append(looked.need)
            return
        self._findings += [looked.finding] if looked.finding is not None else []
        self._count(looked.size, objects=1)

    def _take_beside(self, checked: side_objects.Checked) -> None:
        size, finding = checked
        self._findings += [finding] if finding is not None else []
        self._count(size, objects=1)

    def _name_absent(self) -> None:
        """Report missing objects, except for those that nothing retained needs by now."""
        if not self._absent:
            return
        head = newest_record(self._log)
        min_epoch, alive = (head.min_epoch, {pin.savepoint for pin in head.pins}) if head else (0, set())
        for need in self._absent:
            strict = [
                needer
                for needer in need.needers
                if needer.strict and (needer.savepoint in alive if needer.savepoint else needer.epoch >= min_epoch)
            ]
            if strict:
                self._findings.append(finding(need.path, need.kind, DamageKind.MISSING, _MISSING, strict))

    def _count(self, size: int, *, objects: int) -> None:
        self._bytes += size
        self._objects += objects
        total = max(self._total, self._bytes)
        self._on_progress(Progress(self._bytes, total, self._objects, len(self._findings)))

    def _concurrently(
        self, look: Callable[[NeededObject], _ReadObject], needs: list[NeededObject]
    ) -> Iterator[_ReadObject]:
        with ThreadPoolExecutor(READS_AT_ONCE, thread_name_prefix="statebed-verify") as pool:
            yield from pool.map(look, needs)


def _sink_tables(reading: LogReading, listed: Collection[str]) -> Iterator[SinkTable]:
    """Yield the targets of the job's current sinks that outlive their process and hold a position."""
    for history in histories_after(reading.head) if reading.head is not None else ():
        is_transient = history.kind in _TRANSIENT or history.target.startswith(_IN_PROCESS)
        if history.keeps_position and not history.absent_since and not is_transient:
            loss = AcceptedLoss(held=int(history.accepted_from), until=int(history.accepted))
            published = _published_output(history, reading, listed)
            yield SinkTable(history.sink_id, history.kind, history.target, published, loss if loss.until else None)


def _published_output(history: pb.SinkHistory, reading: LogReading, listed: Collection[str]) -> int:
    """Return the newest epoch of the lineage that has rows for the sink and was published to it; 0 if none."""
    epoch = int(history.last_output)
    while epoch > history.published and names.published(epoch, history.sink_id) not in listed:
        record = reading.records.get(epoch)
        before = None if record is None else history_of(record.sink_histories, history.sink_id)
        epoch = 0 if before is None else int(before.last_output)
    return epoch
