"""Specifications of committing and of how records follow from each other."""

import pytest

from statebed.errors import FENCED_EXIT_CODE, FencedError, InputError, ProtocolError, StateGoneError
from statebed.format import checkpoint_pb2 as pb
from statebed.protocol import Claim, EpochDraft
from statebed.protocol.commit import check_nonce, claim_of, explain_loss, fenced, is_in_log
from statebed.protocol.records import Commit, build_epoch, build_run_start, data_epoch_of

COMMIT = Commit(nonce="n", now_us=7, written_by="test", granted_requests=["r"])
PIN = pb.Pin(savepoint="monday", epoch=3)
BASE = pb.CheckpointMetadata(
    job_id="job",
    epoch=8,
    kind=pb.EPOCH,
    base=7,
    run=6,
    lineage="six",
    min_epoch=4,
    pins=[PIN],
    epoch_time_us=99,
    parallelism=2,
    operators=[pb.OperatorEntry(operator_id="op")],
    source_position=pb.SourcePosition(batch_id=5),
    outbox=[pb.OutboxFile(path="x")],
    sinks=[pb.SinkEntry(sink_id="out")],
)


def test_claim_treats_own_record_as_success() -> None:
    assert claim_of(pb.CheckpointMetadata(nonce="mine"), nonce="mine") is Claim.OURS


def test_claim_treats_any_other_record_as_taken() -> None:
    assert claim_of(pb.CheckpointMetadata(nonce="yours"), nonce="mine") is Claim.OTHERS


def test_a_record_without_nonce_is_refused_because_it_could_be_anybodys() -> None:
    with pytest.raises(InputError, match="no nonce"):
        check_nonce(pb.CheckpointMetadata(epoch=3))


def test_p3_winning_a_number_without_its_predecessor_means_that_it_had_been_collected() -> None:
    assert not is_in_log(previous_is_current=False, later_exists=False)


def test_p3_a_number_next_to_its_predecessor_counts_unless_later_records_exist() -> None:
    assert is_in_log(previous_is_current=True, later_exists=False)
    assert not is_in_log(previous_is_current=True, later_exists=True)


@pytest.mark.parametrize(
    ("later", "newest", "kind"),
    [
        (9, None, FencedError),
        (None, None, StateGoneError),
        (None, pb.CheckpointMetadata(epoch=4, nonce="known", finish_time_us=7), StateGoneError),
        (None, pb.CheckpointMetadata(epoch=3, nonce="backup", finish_time_us=5), StateGoneError),
        (None, pb.CheckpointMetadata(epoch=1, nonce="foreign", finish_time_us=8), FencedError),
    ],
)
def test_p3_only_a_later_record_or_a_younger_foreign_one_fences(
    later: int | None, newest: pb.CheckpointMetadata | None, kind: type[ProtocolError]
) -> None:
    known = pb.CheckpointMetadata(epoch=4, nonce="known", finish_time_us=7)
    error = explain_loss(4, job_id="job", known=known, later=later, newest=newest)
    assert type(error) is kind
    assert error.exit_code == (FENCED_EXIT_CODE if kind is FencedError else 1)


def test_fenced_error_says_by_whom_and_that_nobody_must_restart() -> None:
    error = fenced(9, run=6, by=pb.CheckpointMetadata(job_id="job", run=9, written_by="statebed 1"))
    assert error.exit_code == FENCED_EXIT_CODE
    assert "run 9" in error.what
    assert "job" in error.where
    assert "do not restart" in error.fix


def test_run_start_carries_the_state_of_its_base_and_the_log_of_its_head() -> None:
    head = pb.CheckpointMetadata(job_id="job", epoch=12, lineage="twelve", min_epoch=6, pins=[PIN], kind=pb.EPOCH)
    start = build_run_start(job_id="job", number=13, head=head, base=BASE, fork=True, commit=COMMIT)
    assert (start.epoch, start.previous, start.base, start.run) == (13, 12, 8, 13)
    assert (start.kind, start.status, start.min_epoch) == (pb.RUN_START, pb.COMPLETE, 6)
    assert list(start.operators) == list(BASE.operators)
    assert start.source_position == BASE.source_position
    assert list(start.pins) == [PIN]
    assert start.epoch_time_us == 99


def test_run_start_has_nothing_to_publish() -> None:
    start = build_run_start(job_id="job", number=9, head=BASE, base=BASE, fork=False, commit=COMMIT)
    assert not start.outbox
    assert not start.sinks


def test_a_fork_begins_a_lineage_and_a_plain_restart_does_not() -> None:
    fork = build_run_start(job_id="job", number=9, head=BASE, base=BASE, fork=True, commit=COMMIT)
    restart = build_run_start(job_id="job", number=9, head=BASE, base=BASE, fork=False, commit=COMMIT)
    assert restart.lineage == "six"
    assert fork.lineage != "six"


def test_that_sinks_may_go_back_is_remembered_until_an_epoch_lies_between() -> None:
    fork = build_run_start(
        job_id="job", number=9, head=BASE, base=BASE, fork=True, commit=COMMIT, rollback_allowed=True, min_epoch=7
    )
    again = build_run_start(job_id="job", number=10, head=fork, base=fork, fork=False, commit=COMMIT)
    epoch = build_epoch(head=again, draft=EpochDraft(operators=[]), min_epoch=4, pins=[], commit=COMMIT)
    later = build_run_start(job_id="job", number=12, head=epoch, base=epoch, fork=False, commit=COMMIT)
    assert [one.rollback_allowed for one in (fork, again, epoch, later)] == [True, True, False, False]
    assert (fork.min_epoch, again.min_epoch) == (7, 7)


def test_the_first_run_of_a_job_has_no_base() -> None:
    start = build_run_start(job_id="job", number=1, head=None, base=None, fork=False, commit=COMMIT)
    assert (start.previous, start.base, start.min_epoch, start.lineage) == (0, 0, 1, "000000000001")


def test_the_base_is_never_a_run_start_however_many_follow_each_other() -> None:
    first = build_run_start(job_id="job", number=9, head=BASE, base=BASE, fork=False, commit=COMMIT)
    second = build_run_start(job_id="job", number=10, head=first, base=first, fork=False, commit=COMMIT)
    assert (data_epoch_of(first), data_epoch_of(second), second.base) == (8, 8, 8)
    epoch = build_epoch(head=second, draft=EpochDraft(operators=[]), min_epoch=4, pins=[], commit=COMMIT)
    assert (epoch.epoch, epoch.previous, epoch.base, epoch.run) == (11, 10, 8, 10)


def test_epoch_takes_its_content_from_the_draft_and_nothing_from_the_head() -> None:
    epoch = build_epoch(head=BASE, draft=EpochDraft(operators=[]), min_epoch=5, pins=[], commit=COMMIT)
    assert not epoch.operators
    assert not epoch.outbox
    assert not epoch.pins
    assert epoch.min_epoch == 5
    assert list(epoch.granted_requests) == ["r"]
    assert epoch.start_time_us == epoch.finish_time_us == 7
