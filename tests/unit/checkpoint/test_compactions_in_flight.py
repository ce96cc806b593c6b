"""Files of compactions and clean-up: files in flight stay, files that no record will refer to are deleted."""

from unit.checkpoint.place import SECOND_US, Place

from statebed.checkpoint import Run
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.digest import crc32c, digest

DATA = b"rows that were merged"


def compacted(run: Run) -> str:
    """A file that a compaction of this run has written."""
    path = names.compacted_file(run.number, "op", "t", 0, digest(DATA))
    run.store.put(path, DATA)
    return path


def commit_naming(place: Place, run: Run, path: str) -> None:
    """An epoch whose only subtask lists the file."""
    place.now_us += SECOND_US
    file = pb.FileEntry(path=path, size=len(DATA), rows=1, crc32c=crc32c(DATA))
    table = pb.TableCheckpointMetadata(
        config=pb.TableConfig(name="t"), subtasks={0: pb.TableSubtaskCheckpointMetadata(files=[file])}
    )
    metadata = pb.OperatorCheckpointMetadata(
        job_id=run.job_id, operator_id="op", epoch=run.next_epoch, subtask_index=0, tables={"t": table}
    )
    reference = place.backend.write_operator_checkpoint_metadata(metadata)
    draft = place.draft(run, f"epoch {run.next_epoch}")
    draft.operators[0].subtasks[0].CopyFrom(reference)
    run.commit(draft)


def test_p5_a_file_in_flight_stays_and_goes_when_its_edit_was_given_up(place: Place) -> None:
    run = place.open(epochs=2)
    place.commit(run)
    path = compacted(run)
    assert run.clean_up(in_flight=[path]).swept
    assert run.store.head(path) is not None
    newer = place.open(epochs=2)
    place.commit(newer)
    newer.clean_up()
    assert newer.store.head(path) is None, "what a superseded run left behind is an orphan"


def test_p5_a_file_that_a_record_names_stays_after_its_run_was_superseded(place: Place) -> None:
    run = place.open(epochs=2)
    path = compacted(run)
    commit_naming(place, run, path)
    newer = place.open(epochs=2)
    newer.clean_up()
    assert newer.store.head(path) is not None


def test_p3_what_a_leaving_record_named_stays_while_a_compaction_may_name_it_again(place: Place) -> None:
    """The same rows give the same bytes and so the same name, also when they were merged and dropped before."""
    run = place.open(epochs=2)
    path = compacted(run)
    commit_naming(place, run, path)
    run.clean_up(in_flight=[path])
    for _ in range(6):
        place.commit(run)
    again = compacted(run)
    assert again == path
    removed = run.clean_up(in_flight=[again])
    assert removed.records
    assert not removed.swept
    assert run.store.head(path) is not None


def test_p5_a_sweep_that_no_record_allows_yet_is_made_up_for(place: Place) -> None:
    first = place.open(grace_s=3600)
    orphan = compacted(first)
    run = place.open(grace_s=3600)
    assert not run.clean_up().swept, "no record is older than the grace of readers"
    place.now_us += 3601 * SECOND_US
    place.commit(run)
    assert run.clean_up().swept
    assert run.store.head(orphan) is None
