"""Objects other than state: markers of sinks, requests, answers, ends of runs; and orphans, which nothing refers to."""

from collections.abc import Callable, Collection, Iterable, Mapping

from statebed.errors import FormatError, NewerFormatError, ObjectMissingError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.sealed import open_sealed
from statebed.inspect.verification.findings import DamageKind, Finding, ObjectKind, Orphan, OrphanKind, UnprovenLoss
from statebed.inspect.verification.needs import NeedingRecord, finding
from statebed.protocol.cleanup import is_garbage
from statebed.storage import ObjectStore

Checked = tuple[int, Finding | None]
"""Number of bytes read, and the finding, if any."""


def check_marker(store: ObjectStore, path: str, epoch: int, sink_id: str) -> Checked:
    """Check that an existing marker belongs to this sink and epoch."""

    def parse(data: bytes) -> str:
        marker = open_sealed(pb.PublishedMarker, data, where=path)
        right = (marker.epoch, marker.sink_id) == (epoch, sink_id)
        return "" if right else f"it is the marker of sink {marker.sink_id!r} and epoch {marker.epoch}"

    return _checked(store, path, ObjectKind.MARKER, parse, [NeedingRecord(epoch)])


def check_request(store: ObjectStore, path: str) -> Checked:
    """Check a request or the answer to one."""
    answered = names.request_of_answer(path)
    requested = names.request_of(path)

    def parse(data: bytes) -> str:
        if answered is not None:
            stored = open_sealed(pb.Answer, data, where=path).request_id
        else:
            stored = open_sealed(pb.Request, data, where=path).request_id
        return "" if stored in {answered, requested} else f"it belongs to the request {stored!r}"

    return _checked(store, path, ObjectKind.REQUEST if answered is None else ObjectKind.ANSWER, parse, ())


def check_run(store: ObjectStore, path: str) -> Checked:
    """Check that the end or heartbeat of a run names that run."""
    run = names.run_of(path) or 0
    is_end = path == names.run_end(run)

    def parse(data: bytes) -> str:
        if is_end:
            stored = open_sealed(pb.RunEnd, data, where=path).run
        else:
            stored = open_sealed(pb.RunHeartbeat, data, where=path).run
        return "" if stored == run else f"it belongs to run {stored}"

    return _checked(store, path, ObjectKind.RUN_END if is_end else ObjectKind.HEARTBEAT, parse, ())


def is_of_a_run(path: str) -> bool:
    """Return whether the object is the end or the heartbeat of a run."""
    run = names.run_of(path)
    return bool(run) and path in {names.run_end(run or 1), names.run_heartbeat(run or 1)}


def missing_markers(
    store: ObjectStore, records: Mapping[int, pb.CheckpointMetadata], listed: Collection[str]
) -> list[Finding]:
    """Return the markers that must exist but are missing. A run publishes in order, so every epoch before a marked one
    must be marked.

    Without the newest marker of a run it is not known that the epoch is published; the job then publishes it again.
    `records` are retained ones, because markers are removed before their records.
    """
    newest: dict[tuple[int, str], int] = {}
    for epoch, record in records.items():
        for sink in record.sinks:
            if names.published(epoch, sink.sink_id) in listed:
                newest[record.run, sink.sink_id] = max(epoch, newest.get((record.run, sink.sink_id), 0))
    absent = [
        (epoch, names.published(epoch, sink.sink_id))
        for epoch, record in records.items()
        for sink in record.sinks
        if epoch < newest.get((record.run, sink.sink_id), 0)
    ]
    problem = "its run marked a later epoch, so something other than statebed removed it"
    return [
        finding(path, ObjectKind.MARKER, DamageKind.MISSING, problem, [NeedingRecord(epoch)])
        for epoch, path in absent
        if path not in listed and store.head(path) is None
    ]


def awaited(
    records: Mapping[int, pb.CheckpointMetadata], head: pb.CheckpointMetadata | None, listed: Collection[str]
) -> list[UnprovenLoss]:
    """Return objects that may legitimately be missing: the newest marker of a sink, and the record after the newest
    one.
    """
    markers = [
        names.published(epoch, sink.sink_id)
        for epoch, record in records.items()
        for sink in record.sinks
        if names.published(epoch, sink.sink_id) not in listed
    ]
    last = 0 if head is None else head.epoch
    begun = sorted({epoch for path in listed if (epoch := names.epoch_of(path) or 0) > last})
    unpublished = "the epoch is not published yet, or the marker was removed"
    uncommitted = "the epoch was started but not committed, or the record was removed"
    return [
        *(UnprovenLoss(path, ObjectKind.MARKER, unpublished) for path in markers),
        *(UnprovenLoss(names.record(epoch), ObjectKind.RECORD, uncommitted) for epoch in begun),
    ]


def orphans(listed: Mapping[str, int], named: Collection[str], head: pb.CheckpointMetadata) -> list[Orphan]:
    """Return the objects that nothing refers to, by the rules of clean-up."""
    return [
        Orphan(path, size, kind)
        for path, size in sorted(listed.items())
        if path not in named and (kind := _orphan_kind(path, head)) is not None
    ]


def _orphan_kind(path: str, head: pb.CheckpointMetadata) -> OrphanKind | None:
    epoch, writer = names.epoch_of(path), names.run_of_compaction(path)
    if epoch is None and writer is None:
        own = names.request_of(path) is not None or names.request_of_answer(path) is not None or is_of_a_run(path)
        return None if own else OrphanKind.FOREIGN
    if epoch is not None and path == names.record(epoch):
        return None
    if writer == head.run or not is_garbage(path, protected=(), head=head.epoch, run=head.run):
        return OrphanKind.UNFINISHED
    return OrphanKind.GARBAGE


def _checked(
    store: ObjectStore,
    path: str,
    kind: ObjectKind,
    parse: Callable[[bytes], str],
    needers: Iterable[NeedingRecord],
) -> Checked:
    try:
        data = store.get(path)
    except ObjectMissingError:
        return 0, None  # removed in the meantime by clean-up or a client
    try:
        problem = parse(data)
    except NewerFormatError:
        raise
    except FormatError as error:
        problem = error.what
    return len(data), finding(path, kind, DamageKind.DAMAGED, problem, needers) if problem else None
