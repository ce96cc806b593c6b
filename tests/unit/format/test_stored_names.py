"""Names inside stored metadata are checked when it is read: some become parts of local paths."""

import pytest

from statebed.errors import CorruptObjectError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.sealed import open_sealed, seal

HOSTILE = ["../../evil", "/etc/evil", "..", "a/b", "a\\b", "a\x00b", "", "a b", "x" * 200, "~", "a-b"]


def record_with(**fields: object) -> pb.CheckpointMetadata:
    return pb.CheckpointMetadata(job_id="job", epoch=1, **fields)  # type: ignore[arg-type]  # its own fields


@pytest.mark.parametrize("name", HOSTILE)
def test_p7_an_operator_id_that_is_no_name_is_refused_when_a_record_is_read(name: str) -> None:
    data = seal(record_with(operators=[pb.OperatorEntry(operator_id=name)]))
    with pytest.raises(CorruptObjectError, match="operator") as refused:
        open_sealed(pb.CheckpointMetadata, data, where="there")
    assert refused.value.where == "there"


@pytest.mark.parametrize("name", HOSTILE)
def test_p7_a_table_that_is_no_name_is_refused_when_metadata_is_read(name: str) -> None:
    metadata = pb.OperatorCheckpointMetadata(operator_id="op", tables={name: pb.TableCheckpointMetadata()})
    with pytest.raises(CorruptObjectError, match="table"):
        open_sealed(pb.OperatorCheckpointMetadata, seal(metadata), where="")


@pytest.mark.parametrize(
    "fields",
    [
        {"job_id": "../job"},
        {"operators": [pb.OperatorEntry(operator_id="op", subtasks=[pb.SubtaskReference(path="../x")])]},
        {"outbox": [pb.OutboxFile(operator_id="../op", path="a")]},
        {"outbox": [pb.OutboxFile(operator_id="op", path="../a")]},
        {"outbox": [pb.OutboxFile(operator_id="op", stream="../s", path="a")]},
        {"sinks": [pb.SinkEntry(sink_id="../sink")]},
        {"pins": [pb.Pin(savepoint="../monday", path="a")]},
        {"pins": [pb.Pin(savepoint="monday", path="/a")]},
        {"source_position": pb.SourcePosition(source_logs=[pb.SourceLogFile(name="../../x", path="a")])},
        {"source_position": pb.SourcePosition(source_logs=[pb.SourceLogFile(name="/etc/x", path="a")])},
        {"source_position": pb.SourcePosition(source_logs=[pb.SourceLogFile(name="sources/0/1", path="../a")])},
        {"source_position": pb.SourcePosition(offsets=[pb.LogEntry(name="../7")])},
        {"source_position": pb.SourcePosition(commits=[pb.LogEntry(name="../../.bashrc")])},
    ],
    ids=str,
)
def test_p7_no_name_or_path_of_a_record_leaves_its_folder(fields: dict[str, object]) -> None:
    record = pb.CheckpointMetadata(**{"job_id": "job", "epoch": 1, **fields})  # type: ignore[arg-type]
    with pytest.raises(CorruptObjectError):
        open_sealed(pb.CheckpointMetadata, seal(record), where="")


def test_p7_paths_of_data_files_stay_in_the_job_folder() -> None:
    subtask = pb.TableSubtaskCheckpointMetadata(files=[pb.FileEntry(path="../other_job/data.parquet")])
    table = pb.TableCheckpointMetadata(config=pb.TableConfig(name="t"), subtasks={0: subtask})
    metadata = pb.OperatorCheckpointMetadata(operator_id="op", tables={"t": table})
    with pytest.raises(CorruptObjectError, match="path"):
        open_sealed(pb.OperatorCheckpointMetadata, seal(metadata), where="")


def test_ordinary_names_are_read_back() -> None:
    record = record_with(
        operators=[pb.OperatorEntry(operator_id="per_minute", subtasks=[pb.SubtaskReference(path="checkpoints/1/x")])],
        outbox=[pb.OutboxFile(operator_id="per_minute", stream="late", path="checkpoints/1/outbox/y")],
        sinks=[pb.SinkEntry(sink_id="minutes-v2.0")],
        pins=[pb.Pin(savepoint="before-upgrade", path="checkpoints/1/savepoint")],
        source_position=pb.SourcePosition(
            source_logs=[pb.SourceLogFile(name="sources/0/9.compact", path="checkpoints/1/source/z.log")],
            offsets=[pb.LogEntry(name="7")],
            commits=[pb.LogEntry(name="7")],
        ),
    )
    assert open_sealed(pb.CheckpointMetadata, seal(record), where="").sinks[0].sink_id == "minutes-v2.0"
