"""Verification on a job with every kind of object: each flipped byte, each removed or cut file is found and named."""

import random
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from maintained_job import JOB, MaintainedJob, maintained_job

from statebed.checkpoint import CheckpointLog, Origin, RollbackPolicy
from statebed.checkpoint.run_status import put_end, put_heartbeat
from statebed.errors import EpochNotRetainedError, JobNotFoundError, NewerFormatError, SavepointError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.digest import crc32c
from statebed.format.sealed import TRAILER_TAG, seal
from statebed.inspect.verification import (
    DamageKind,
    ObjectKind,
    OrphanKind,
    Progress,
    Verification,
    bytes_check,
    verify,
    verify_log,
)

FLIPS = 500
SEED = 20261115


@pytest.fixture(scope="module")
def job() -> Iterator[MaintainedJob]:
    """Two lineages, a savepoint, merged files, outbox, markers, source logs, a request, an answer, two runs' ends."""
    with maintained_job() as made:
        made.open()
        for _ in range(3):
            made.epoch()
        merged = made.merged()
        made.run.add_request(pb.Request(savepoint=pb.SavepointRequest(name="monday")))
        made.epoch(edits=merged)
        made.epoch()
        made.open(origin=Origin(epoch=5), rollback=RollbackPolicy.ALLOW)
        made.epoch(salt=1)
        asked = pb.Request(request_id="drop", drop_savepoint=pb.DropSavepointRequest(name="nothing"))
        made.store.put(names.request("drop"), seal(asked))
        made.run.serve_requests()
        made.epoch(salt=1)
        put_end(made.store, pb.RunEnd(job_id=JOB, run=1, outcome=pb.RUN_FAILED))
        put_heartbeat(made.store, pb.RunHeartbeat(job_id=JOB, run=1, every_us=1_000_000))
        yield made


def verified(job: MaintainedJob) -> Verification:
    return verify_log(CheckpointLog(job.store, JOB))


def paths_of(job: MaintainedJob) -> list[str]:
    return [info.path for info in job.store.list("")]


class Damaged:
    """Puts bytes in the place of an object's, and afterwards those that belong there."""

    def __init__(self, job: MaintainedJob, path: str, data: bytes | None) -> None:
        self.job, self.path, self.data = job, path, data
        self.whole = job.store.get(path)

    def __enter__(self) -> Verification:
        if self.data is None:
            self.job.store.delete(self.path)
        else:
            self.job.store.put(self.path, self.data)
        return verified(self.job)

    def __exit__(self, *_: object) -> None:
        self.job.store.put(self.path, self.whole)


def flipped(data: bytes, position: int, bit: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1 << bit]) + data[position + 1 :]


def kind_of(path: str) -> ObjectKind:
    """Return the kind by its name, independently of the code under test."""
    name = path.rpartition("/")[2]
    if path.startswith("requests/"):
        return ObjectKind.ANSWER if name.endswith(".answer") else ObjectKind.REQUEST
    if path.startswith("runs/"):
        return ObjectKind.RUN_END if name == "end.metadata" else ObjectKind.HEARTBEAT
    for beginning, kind in {
        "checkpoint.": ObjectKind.RECORD,
        "savepoint-": ObjectKind.SAVEPOINT,
        "operator-": ObjectKind.SUBTASK_METADATA,
        "published-": ObjectKind.MARKER,
    }.items():
        if name.startswith(beginning):
            return kind
    return {"outbox": ObjectKind.OUTBOX, "source": ObjectKind.SOURCE_LOG}.get(path.split("/")[2], ObjectKind.DATA)


def test_the_job_has_every_kind_of_object_and_is_whole(job: MaintainedJob) -> None:
    found = verified(job)
    assert {kind_of(path) for path in paths_of(job)} == set(ObjectKind)
    assert any(names.run_of_compaction(path) for path in paths_of(job))
    assert found.whole
    assert found.head_whole
    assert found.objects == len(paths_of(job))
    assert found.bytes == sum(info.size for info in job.store.list(""))
    assert not found.orphans
    assert found.savepoints == ("monday",)


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, 5))])
def test_p7_each_of_500_flipped_bytes_is_found_and_its_file_is_named(job: MaintainedJob, part: int) -> None:
    chance = random.Random(SEED + part)
    by_kind: dict[ObjectKind, list[str]] = {}
    for path in paths_of(job):
        by_kind.setdefault(kind_of(path), []).append(path)
    kinds = sorted(by_kind, key=lambda kind: kind.value)
    for number in range(FLIPS // 5):
        path = chance.choice(by_kind[kinds[number % len(kinds)]])
        data = job.store.get(path)
        position, bit = chance.randrange(len(data)), chance.randrange(8)
        with Damaged(job, path, flipped(data, position, bit)) as found:
            named = {one.path: one for one in found.findings}
            assert path in named, f"byte {position}, bit {bit} of {path}"
            assert named[path].trouble is DamageKind.DAMAGED
            assert named[path].kind is kind_of(path)
    assert verified(job).whole


def test_p7_each_file_that_is_cut_short_is_found_and_named(job: MaintainedJob) -> None:
    for number, path in enumerate(paths_of(job)):
        data = job.store.get(path)
        with Damaged(job, path, data[: (0, len(data) // 2, len(data) - 1)[number % 3]]) as found:
            assert path in {one.path for one in found.findings}


def test_p7_each_removed_file_is_found_and_named(job: MaintainedJob) -> None:
    newest_marker_of_a_run = {names.published(6, "table"), names.published(9, "table")}
    for path in paths_of(job):
        if path.startswith(("requests/", "runs/")):
            continue  # who asked takes requests away, and a run that is killed leaves no end
        with Damaged(job, path, None) as found:
            missing = {one.path for one in found.findings if one.trouble is DamageKind.MISSING}
            awaited = {one.path for one in found.awaited}
            # A sink may not have the newest epoch yet: it is offered again.
            assert (awaited if path in newest_marker_of_a_run else missing) == {path}
            assert not (missing & awaited)


def test_p7_a_removed_record_that_nothing_followed_is_named_as_one_that_may_never_have_been(job: MaintainedJob) -> None:
    followed = [path for path in paths_of(job) if path.startswith(("requests/", "compactions/", "runs/"))]
    with ExitStack() as removed:
        for path in [names.record(9), names.published(9, "table"), *followed]:
            found = removed.enter_context(Damaged(job, path, None))
    assert names.record(9) in {one.path for one in found.awaited}
    assert names.record(9) not in {one.path for one in found.findings}
    assert found.head == 8


def test_a_damaged_data_file_is_described_by_the_column_that_is_wrong_and_by_who_needs_it(job: MaintainedJob) -> None:
    path = next(path for path in paths_of(job) if "data/totals-counts" in path and names.epoch_of(path) == 2)
    data = job.store.get(path)
    with Damaged(job, path, flipped(data, 6, 0)) as found:
        (finding,) = found.findings
    assert finding.problem == "the checksum of column '_key_hash' of row group 0 does not match its bytes"
    assert finding.epochs == (2, 3, 4)
    assert finding.savepoints == ("monday",)
    assert found.damaged_epochs == (2, 3, 4)
    assert found.head_whole


def test_p7_a_file_that_is_read_in_pieces_is_checked_like_any_other(
    job: MaintainedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bytes_check, "PIECE_BYTES", 100)
    assert verified(job).whole
    for part in ("data/totals-counts", "data/minutes", "outbox/", "source/"):
        path = next(path for path in paths_of(job) if part in path)
        data = job.store.get(path)
        for position in range(0, len(data), max(1, len(data) // 7)):
            with Damaged(job, path, flipped(data, position, 0)) as found:
                assert [one.path for one in found.findings] == [path]
        for damaged in (data[:-1], data + b"more", None):
            with Damaged(job, path, damaged) as found:
                assert [one.path for one in found.findings] == [path]


def test_bytes_that_are_whole_but_not_those_of_the_name_are_found(job: MaintainedJob) -> None:
    reference = job.run.head.operators[0].subtasks[0]
    other = job.run.head.operators[0].subtasks[1]
    with Damaged(job, reference.path, job.store.get(other.path)) as found:
        assert [one.path for one in found.findings] == [reference.path]


def test_one_epoch_or_one_savepoint_is_checked_alone(job: MaintainedJob) -> None:
    path = next(path for path in paths_of(job) if "/data/" in path and names.epoch_of(path) == 9)
    log = CheckpointLog(job.store, JOB)
    with Damaged(job, path, b"nothing of it") as everything:
        assert everything.damaged_epochs == (9,)
        assert verify_log(log, epoch=8).whole
        assert not verify_log(log, epoch=9).whole
        assert verify_log(log, savepoint="monday").savepoints == ("monday",)
        assert verify_log(log, savepoint="monday").whole
    with pytest.raises(EpochNotRetainedError, match="epoch 99 has no record"):
        verify_log(log, epoch=99)
    with pytest.raises(SavepointError, match="no savepoint 'tuesday'"):
        verify_log(log, savepoint="tuesday")


def test_a_damaged_record_is_named_and_nothing_is_called_an_orphan_meanwhile(job: MaintainedJob) -> None:
    path = names.record(9)
    with Damaged(job, path, b"") as found:
        assert [one.path for one in found.findings] == [path]
        assert found.head == 8
        assert not found.head_whole
        assert not found.orphans_known


def test_orphans_are_told_apart_by_what_becomes_of_them(job: MaintainedJob) -> None:
    left = {
        names.data_file(8, "totals", "counts", 0, "0" * 32): OrphanKind.GARBAGE,
        names.data_file(10, "totals", "counts", 0, "0" * 32): OrphanKind.UNFINISHED,
        names.compacted_file(7, "totals", "counts", 0, "0" * 32): OrphanKind.UNFINISHED,
        names.compacted_file(1, "totals", "counts", 0, "0" * 32): OrphanKind.GARBAGE,
        "notes.txt": OrphanKind.FOREIGN,
    }
    for path in left:
        job.store.put(path, b"left over")
    try:
        found = verified(job)
        assert {one.path: one.kind for one in found.orphans} == left
        assert found.whole
    finally:
        for path in left:
            job.store.delete(path)


def test_a_record_of_a_newer_format_is_no_damage(job: MaintainedJob) -> None:
    record = pb.CheckpointMetadata()
    record.CopyFrom(job.run.head)
    record.ClearField("crc32c")
    record.format_version = 99
    body = record.SerializeToString(deterministic=True)
    job.store.put(names.record(10), body + bytes([TRAILER_TAG]) + crc32c(body).to_bytes(4, "little"))
    try:
        with pytest.raises(NewerFormatError):
            verified(job)
    finally:
        job.store.delete(names.record(10))


def test_progress_ends_with_everything_done(job: MaintainedJob) -> None:
    seen: list[Progress] = []
    found = verify_log(CheckpointLog(job.store, JOB), on_progress=seen.append)
    assert seen[-1] == Progress(found.bytes, found.bytes, found.objects, 0)
    assert [one.done_bytes for one in seen] == sorted(one.done_bytes for one in seen)


def test_a_job_that_is_not_there_is_an_error_of_its_own() -> None:
    with pytest.raises(JobNotFoundError):
        verify("memory://nothing-here", "shop")
