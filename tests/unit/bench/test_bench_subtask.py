"""The benchmark of one subtask's epoch checks its own answers."""

import json
from typing import Any

import pyarrow as pa
import pytest

from bench import subtask
from bench.report import Report
from statebed.storage import ObjectStore
from statebed.subtasks import SubtaskReport, SubtaskTask, run_subtask


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subtask, "ROWS", 2000)
    monkeypatch.setattr(subtask, "_MILLION", 3000)


@pytest.mark.parametrize("name", subtask.OPERATORS)
def test_each_case_is_measured_against_no_cache_the_goal_and_less_state(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    subtask.measure(name, Report(as_json=True), epochs=5)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["baseline"] for line in lines] == ["no host cache", "no host cache", "goal", "1M keys", "1M keys"]


def test_state_that_lost_rows_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def half(task: SubtaskTask, store: ObjectStore, batches: list[pa.RecordBatch], **more: Any) -> SubtaskReport:
        return run_subtask(task, store, [batch.slice(0, batch.num_rows // 2) for batch in batches], **more)

    monkeypatch.setattr(subtask, "run_subtask", half)
    with pytest.raises(SystemExit, match="are in files, not"):
        subtask.measure("updating aggregate", Report(as_json=True), epochs=1)
